"""Texts that a user may write as a view's query: ordinary analytics, and attempts to reach something else.

All read the tables of `TYPES`.
"""
# ruff: noqa: E501 - queries stay as they are written

from __future__ import annotations

TYPES = {
    "items": "id int, note string, n int, d date, ts timestamp, amount decimal(10,2)",
    "others": "id int, z string",
}
SINCE_4 = (4, 1)
EVER = (3, 5)

# query -> the first Spark that has it
ORDINARY: dict[str, tuple[int, int]] = {
    "SELECT note, count(*) AS c, sum(amount) s FROM items GROUP BY ALL HAVING c > 1 ORDER BY c DESC, note LIMIT 5": EVER,
    "SELECT *, row_number() OVER (PARTITION BY note ORDER BY id) AS rn, lag(n, 1) OVER (ORDER BY id) AS l,"
    " ntile(4) OVER (ORDER BY id) AS q, sum(n) OVER w AS s,"
    " sum(n) OVER (ORDER BY ts RANGE BETWEEN INTERVAL 1 DAY PRECEDING AND CURRENT ROW) AS day,"
    " avg(n) OVER (PARTITION BY note ORDER BY id ROWS BETWEEN 2 PRECEDING AND 1 FOLLOWING) AS near,"
    " percent_rank() OVER (ORDER BY n, id) AS p FROM items WINDOW w AS (PARTITION BY note ORDER BY id)": EVER,
    "SELECT id, w, p FROM items LATERAL VIEW OUTER explode(split(note, ',')) t AS w"
    " LATERAL VIEW posexplode(array(1, 2)) q AS p, v": EVER,
    "SELECT i.id, q FROM items i, LATERAL (SELECT i.id + 1 AS q)": EVER,
    "SELECT * FROM (SELECT note, n, amount FROM items) PIVOT (sum(amount) AS a, max(n) AS m FOR n IN (1, 2 AS two))": EVER,
    "SELECT * FROM (SELECT id, n FROM items) UNPIVOT (v FOR k IN (id, n))": EVER,
    "SELECT from_json(note, 'a INT, b DECIMAL(10,2), c ARRAY<STRUCT<x: STRING>>') AS j,"
    " get_json_object(note, '$.a.b[0]') AS g, to_json(named_struct('a', id)) AS t, json_array_length(note) AS l,"
    " from_json(note, 'MAP<STRING, DECIMAL(5,1)>')['k'] AS k FROM items": EVER,
    "SELECT json_tuple(note, 'a', 'b') AS (a, b) FROM items": EVER,
    "SELECT note, n, sum(amount) AS s, grouping(note) AS g, grouping_id() AS i FROM items"
    " GROUP BY GROUPING SETS ((note), (n), ())": EVER,
    "SELECT note, n, sum(amount) AS s FROM items GROUP BY CUBE(note, n)": EVER,
    "SELECT note, n, sum(amount) AS s FROM items GROUP BY note, n WITH ROLLUP": EVER,
    "SELECT date_trunc('month', ts) AS a, date_add(d, 3) AS b, d + INTERVAL 1 MONTH AS c, months_between(d, ts) AS e,"
    " extract(YEAR FROM d) AS f, date_format(ts, 'yyyy-MM (E)') AS g, to_timestamp(note, 'yyyy') AS h,"
    " datediff(d, DATE'2026-01-01') AS i, trunc(d, 'MM') AS j, unix_timestamp(ts) AS k, make_date(2020, 1, 1) AS l,"
    " d BETWEEN DATE'2020-01-01' AND DATE'2021-01-01' AS m, last_day(d) AS o, weekofyear(d) AS p,"
    " ts - INTERVAL '1 02:03:04' DAY TO SECOND AS q, timestampadd(HOUR, 1, ts) AS r, timestampdiff(DAY, ts, ts) AS s,"
    " from_utc_timestamp(ts, 'CET') AS t, dateadd(DAY, 1, d) AS u FROM items": EVER,
    "SELECT regexp_extract(note, 'no(\\\\d+)-(?:x|y(z))', 1) AS a, regexp_replace(note, '[^a-z]', '') AS b,"
    " note RLIKE '^a(b)+$' AS c, note LIKE '%x(y%' ESCAPE '!' AS e, note ILIKE 'X%' AS f, note LIKE ANY ('a%', 'b%') AS g,"
    " regexp_like(note, 'p(q)') AS h, regexp_count(note, 'a') AS i FROM items": EVER,
    "SELECT transform(array(1, 2), x -> x + id) AS a, filter(array(1), x -> x > 0) AS b,"
    " aggregate(array(1, 2), 0, (acc, x) -> acc + x, acc -> acc * 2) AS c, exists(array(1), x -> x = 1) AS e,"
    " map_filter(map('a', 1), (k, v) -> v > 0) AS f, zip_with(array(1), array(2), (a, b) -> a * b) AS g,"
    " array_sort(array(2, 1), (a, b) -> a - b) AS h, transform(sequence(1, 3), (x, i) -> x * i)[0] AS j FROM items": EVER,
    "SELECT * FROM items o WHERE n > (SELECT avg(n) FROM items i WHERE i.note = o.note)"
    " AND EXISTS (SELECT 1 FROM others x WHERE x.id = o.n) AND o.id NOT IN (SELECT id FROM others WHERE id IS NOT NULL)"
    " AND (o.id, o.note) IN (SELECT id, z FROM others)": EVER,
    "SELECT id FROM items WHERE ts >= date_sub(DATE'2024-06-01', 7) AND d BETWEEN '2024-01-01' AND to_date('2024-02-01')"
    " AND CAST(concat(note, 'T00:00:00') AS TIMESTAMP) > DATE'2024-01-01' - INTERVAL '7' DAY"
    " AND CAST(n AS STRING) NOT IN ('now', 'today')": EVER,
    "SELECT CASE WHEN n > 1 THEN 'today' ELSE 'later' END AS a, coalesce(note, 'now') AS b, if(n > 1, 'today', note) AS c,"
    " CAST(regexp_extract(note, '\\\\((.*)', 1) AS DATE) AS e, nvl(d, make_date(2024, 1, 1)) AS f,"
    " nvl(ts, CAST(DATE'2024-01-01' AS TIMESTAMP)) AS g, CAST('today is' AS STRING) AS h FROM items": EVER,
    "SELECT id, (SELECT max(z) FROM others WHERE others.id = items.id) AS m FROM items": EVER,
    "SELECT id FROM items UNION SELECT id FROM others INTERSECT SELECT 1 EXCEPT SELECT 2": EVER,
    "(SELECT id FROM items) MINUS ALL (SELECT id FROM others)": EVER,
    "WITH RECURSIVE t(k) AS (SELECT 1 UNION ALL SELECT k + 1 FROM t WHERE k < 5) SELECT k, id FROM t JOIN items ON k = id":
        SINCE_4,
    "WITH a AS (SELECT * FROM items), b AS (SELECT count(*) AS c FROM a) SELECT a.*, b.c FROM a CROSS JOIN b": EVER,
    "SELECT r.id, note FROM range(10) r JOIN items ON r.id = items.id": EVER,
    "SELECT i.id, k.b FROM items i JOIN (VALUES (1, 'a'), (2, concat('b', 'c'))) AS k(a, b) ON i.id = k.a": EVER,
    "SELECT CASE WHEN n > 1 THEN 'a' WHEN n IS NULL THEN 'b' ELSE 'c' END AS a, CASE note WHEN 'x' THEN 1 END AS b,"
    " if(n = 1, 2, 3) AS c, coalesce(n, 0) AS e, nullif(n, 0) AS f, nvl(n, 0) AS g, CAST(n AS STRING) AS h,"
    " try_cast(note AS INT) AS i, CAST(amount AS DECIMAL(20,4)) AS j, n % 3 AS k, n div 2 AS l, ~n AS m, n & 1 | 2 ^ 3 AS o,"
    " NOT (n = 1) AS p, n <=> NULL AS q, n IS DISTINCT FROM 1 AS d, note || '(x)' AS r, array(1, 2)[0] AS s, map('a', 1)['a'] AS t,"
    " struct(id, n).id AS u, -n AS v, n IS NOT DISTINCT FROM 1 AS w, note IN ('a', 'b') AS x, n != 2 OR n <> 3 AS y,"
    " amount / 3 * 2 AS z FROM items": EVER,
    "SELECT percentile_approx(n, 0.5) AS a, percentile(n, 0.5) AS b, count(DISTINCT note, n) AS c, count_if(n > 1) AS e,"
    " max_by(note, n) AS f, approx_count_distinct(note) AS g, sum(n) FILTER (WHERE n > 1) AS h,"
    " sort_array(collect_set(note)) AS i, stddev_samp(n) AS j, corr(n, id) AS k, bool_or(n > 1) AS l,"
    " percentile_cont(0.5) WITHIN GROUP (ORDER BY n) AS m, bit_xor(n) AS o, kurtosis(n) AS p, skewness(n) AS q,"
    " median(n) AS r, every(n > 0) AS s, regr_slope(n, id) AS t FROM items": EVER,
    "SELECT listagg(note, ',') WITHIN GROUP (ORDER BY note) AS a, mode(n, true) AS b FROM items": SINCE_4,
    "FROM items |> WHERE n > 1 |> AGGREGATE count(*) AS c GROUP BY note |> SELECT c": SINCE_4,
    "SELECT /*+ BROADCAST(b), REPARTITION(3) */ a.id FROM items a JOIN items b USING (id)": EVER,
    "SELECT a.id FROM items a LEFT SEMI JOIN others b ON a.id = b.id": EVER,
    "SELECT id FROM items a NATURAL FULL OUTER JOIN others b": EVER,
    "SELECT `window`(ts, '1 day').start AS day, sum(n) AS s FROM items GROUP BY `window`(ts, '1 day')": EVER,
    "SELECT session_window(ts, '5 minutes').start AS s, sum(n) AS t FROM items GROUP BY session_window(ts, '5 minutes')":
        EVER,
    "SELECT stack(2, 1, 2, 3, 4) AS (a, b) FROM items": EVER,
    "SELECT inline(array(struct(1 AS a, 'a' AS b))) FROM items": EVER,
    "SELECT note AS `my(col)`, n AS `a b` FROM items": EVER,
    "SELECT 'its' 'b(' AS a, \"c\" AS b, r'\\d(x' AS c, 'two\nlines' AS e, '+- x' AS f, split(note, '\\n') AS g,"
    " X'1F' AS h, 1e3 AS i, 1.5BD AS j, 10L AS k, 'äöü (é(' AS l FROM items -- a comment: rand()": EVER,
    "SELECT sha2(note, 256) AS a, md5(note) AS b, xxhash64(id) AS c, hash(n) AS e, crc32(note) AS f, base64(note) AS g,"
    " hex(id) AS h, url_encode(note) AS i, soundex(note) AS j, levenshtein(note, 'x') AS k, format_number(n, 2) AS l,"
    " format_string('%d', n) AS m, lpad(note, 3, '0') AS o, substring(note, 1, 2) AS p, substring(note FROM 2 FOR 1) AS q,"
    " position('a' IN note) AS r, trim(BOTH 'x' FROM note) AS s, overlay(note PLACING 'x' FROM 1) AS t,"
    " initcap(note) AS u, split_part(note, ',', 1) AS v, concat_ws(',', note, 'b') AS w, left(note, 2) AS x,"
    " translate(note, 'a', 'b') AS y, parse_url(note, 'HOST') AS z FROM items": EVER,
    "SELECT * EXCEPT (note) FROM items": SINCE_4,
    "SELECT id FROM items DISTRIBUTE BY id SORT BY n": EVER,
    "SELECT DISTINCT note FROM items ORDER BY 1 NULLS LAST LIMIT 3 OFFSET 1": EVER,
    "SELECT assert_true(n > 1) IS NULL AS a, if(n < 0, raise_error('negative'), n) AS b, typeof(n) AS c FROM items": EVER,
    "SELECT variant_get(parse_json(note), '$.a', 'int') AS v FROM items": SINCE_4,
    "SELECT n::string AS t FROM items": SINCE_4,
    "SELECT note COLLATE UTF8_LCASE = 'x' AS same FROM items": SINCE_4,
    "SELECT struct(id, n).n AS m, map_from_arrays(array(1), array(2)) AS a, arrays_zip(array(1), array(2)) AS z,"
    " flatten(array(array(n))) AS f, element_at(array(n), -1) AS e, size(array(n)) AS s, map_keys(map(1, n)) AS k,"
    " array_join(array(note), ',') AS j, slice(array(1, 2), 1, 1) AS l, cardinality(array(n)) AS c FROM items":
        EVER,
    "SELECT id FROM items WHERE note = 'current user: (x)' AND note LIKE '%e-mail(s)%'": EVER,
}  # fmt: skip

_REFLECT = "('java.lang.System', 'getenv', 'HOME')"
XPATHS = [
    f"xpath{type}" for type in ("", "_boolean", "_double", "_float", "_int", "_long", "_number", "_short", "_string")
]
KLL_SKETCHES = [
    f"kll_{how}_{type}" for how in ("sketch_agg", "sketch_merge", "merge_agg") for type in ("bigint", "double", "float")
]
# query -> what its refusal says. Or Spark refuses the query itself, with its own error class.
HOSTILE: dict[str, str] = {
    "SELECT TRANSFORM(id) USING 'bash -c \"id\"' FROM items": "transform|ScriptTransformation",
    "SELECT TRANSFORM(id) USING 'cat' AS (x STRING) FROM items": "transform|ScriptTransformation",
    "FROM items MAP id USING 'cat' AS x": "ScriptTransformation|parses",
    "FROM items REDUCE id USING 'cat' AS x": "ScriptTransformation|parses",
    "SELECT id FROM items UNION ALL (SELECT TRANSFORM(id) USING 'cat' AS (x INT) FROM items)": "Transform",
    "SELECT (SELECT max(x) FROM (SELECT TRANSFORM(id) USING 'cat' AS (x STRING) FROM items)) AS x FROM items": "Transform",
    "SELECT i.id FROM items i JOIN others o ON i.id = o.id AND EXISTS (SELECT TRANSFORM(id) USING 'cat' AS x FROM items)": "Transform|UNSUPPORTED_SUBQUERY",
    "WITH unused AS (SELECT TRANSFORM(id) USING 'cat' AS (x STRING) FROM items) SELECT id FROM items": "Transform",
    "SELECT note FROM items GROUP BY note HAVING max(id) IN (SELECT TRANSFORM(id) USING 'cat' AS (x INT) FROM items)": "Transform",
    "SELECT i.id, q FROM items i, LATERAL (SELECT TRANSFORM(o.id) USING 'cat' AS (q STRING) FROM others o)": "Transform",
    f"SELECT reflect{_REFLECT} AS x FROM items": r"reflect\(\)",
    f"SELECT `reflect`{_REFLECT} AS x FROM items": r"reflect\(\)",
    # comments that Spark ends at another place than our parser
    f"SELECT /* /*+ */ reflect{_REFLECT} AS x -- */ 1 AS x\nFROM items": r"reflect\(\)|the comment",
    f"SELECT -- \\\n /*\n reflect{_REFLECT} AS x -- */ 1 AS x\nFROM items": r"reflect\(\)|the comment",
    f"SELECT `java_method`{_REFLECT} AS x FROM items": r"java_method\(\)",
    f"SELECT ReFlEcT/**/ {_REFLECT} AS x FROM items": r"reflect\(\)",
    f"SELECT try_reflect{_REFLECT} AS x FROM items": r"try_reflect\(\)|UNRESOLVED_ROUTINE",
    f"SELECT IDENTIFIER('ref' || 'lect'){_REFLECT} AS x FROM items": "IDENTIFIER|parses",
    f"SELECT IDENTIFIER('reflect'){_REFLECT} AS x FROM items": "(?i)IDENTIFIER|parses",
    f"SELECT system.builtin.reflect{_REFLECT} AS x FROM items": "reflect|REQUIRES_SINGLE_PART_NAMESPACE",
    "SELECT builtin.upper(note) AS x FROM items": "upper|UNRESOLVED_ROUTINE",
    "SELECT spark_catalog.default.mine(note) AS x FROM items": "mine",
    f"SELECT * FROM items JOIN (VALUES (reflect{_REFLECT}))": "reflect|INVALID_INLINE_TABLE",
    f"SELECT id FROM items WHERE EXISTS (SELECT 1 WHERE reflect{_REFLECT} = 'x')": "reflect",
    f"SELECT transform(array(1), x -> reflect{_REFLECT}) AS x FROM items": "reflect",
    f"SELECT id FROM items ORDER BY `reflect`{_REFLECT}": "reflect",
    f"SELECT '\\\\' AS a, reflect{_REFLECT} AS b, '\\\\' AS c FROM items": "reflect",
    f"SELECT '\\'' AS a, reflect{_REFLECT} AS b, '\\'' AS c FROM items": "reflect",
    f"SELECT r'\\' AS a, reflect{_REFLECT} AS b, r'\\' AS c FROM items": "reflect|parses",
    f"SELECT /* /* */ 1 AS a, */ reflect{_REFLECT} AS b FROM items": "reflect|parses|PARSE_SYNTAX_ERROR",
    f"SELECT 'reflect{_REFLECT[:1]}' AS a, reflect{_REFLECT} AS b FROM items": "reflect",
    "SELECT * FROM IDENTIFIER('text.`/etc/passwd`')": "IDENTIFIER|TABLE_OR_VIEW_NOT_FOUND|Relation",
    "SELECT * FROM text.`/etc/passwd`": "passwd|TABLE_OR_VIEW_NOT_FOUND|Relation",
    "SELECT * FROM parquet.`/tmp`": "tmp|TABLE_OR_VIEW_NOT_FOUND|direct query on files|UNABLE_TO_INFER_SCHEMA",
    "SELECT id FROM items UNION SELECT value FROM `text`.`/etc/passwd`":
        "passwd|TABLE_OR_VIEW_NOT_FOUND|Relation",
    "SELECT * FROM read_files('/etc/passwd')": "read_files",
    "SELECT * FROM python_worker_logs()": "python_worker_logs|Python Worker Logging|TABLE_VALUED_FUNCTION",
    "SELECT * FROM default.items": "default.items|TABLE_OR_VIEW_NOT_FOUND",
    "SELECT * FROM spark_catalog.default.theirs": "theirs|TABLE_OR_VIEW_NOT_FOUND",
    "SELECT * FROM global_temp.theirs": "theirs|global_temp",
    "EXECUTE IMMEDIATE 'SELECT 1 AS x'": "EXECUTE|parses|PARSE_SYNTAX_ERROR",
    "SELECT session.secret AS x FROM items": "secret|UNRESOLVED_COLUMN",
    "SELECT system.session.secret AS x FROM items": "secret|UNRESOLVED_COLUMN",
    "SELECT input_file_name() AS x FROM items": "input_file_name",
    "SELECT `input_file_name`() AS x FROM items": "input_file_name",
    "SELECT current_user() AS x FROM items": "current_user",
    "SELECT current_user AS x FROM items": "current_user",
    "SELECT current_user AS x, 'current_user(' AS y FROM items": "current_user",
    "SELECT user AS x FROM items": "current_user|UNRESOLVED_COLUMN|column user",
    "SELECT session_user() AS x FROM items": "session_user|current_user|UNRESOLVED_ROUTINE",
    "SELECT version() AS x FROM items": "version",
    "SELECT current_catalog() AS a, current_database() AS b FROM items": "current_",
    "SELECT now() AS x FROM items": "now",
    "SELECT `now`() AS x FROM items": "now",
    "SELECT current_date AS x FROM items": "current_date",
    "SELECT unix_timestamp() AS x FROM items": "timestamp",
    "SELECT `rand`() AS x FROM items": "rand",
    "SELECT `random`(1) AS x FROM items": "rand|UNRESOLVED_ROUTINE",
    "SELECT `uuid`() AS x FROM items": "uuid",
    "SELECT `shuffle`(array(1, 2)) AS x FROM items": "shuffle",
    "SELECT `monotonically_increasing_id`() AS x FROM items": "monotonically_increasing_id",
    "SELECT spark_partition_id() AS x FROM items": "(?i)spark_partition_id",
    "SELECT * FROM items TABLESAMPLE (5 PERCENT)": "TABLESAMPLE|Sample",
    "SELECT from_avro(CAST(note AS BINARY), '{}', map('avroSchemaUrl', '/etc/passwd')) AS x FROM items": "from_avro",
    "SELECT xpath_string('<!DOCTYPE a SYSTEM \"file:///etc/x.dtd\"><a>&x;</a>', 'a') AS x FROM items": r"xpath_string\(\)",
    **{f"SELECT `{name}`(note, 'a/b') AS x FROM items": rf"{name}\(\)" for name in XPATHS},
    **{f"SELECT {name}(n) AS x FROM items": f"{name}|UNRESOLVED_ROUTINE" for name in KLL_SKETCHES},
    "SELECT aes_encrypt(note, 'abcdefghijklmnop') AS x FROM items": "aes_encrypt",
    "SELECT no_such_function(id) AS x FROM items": "no_such_function",
    "SELECT id FROM items WHERE ts > 'now'": "as a time",
    "SELECT id FROM items WHERE d BETWEEN 'today' AND '2099-01-01'": "as a time",
    "SELECT CAST(concat('n', 'ow') AS TIMESTAMP) AS x FROM items": "as a time",
    "SELECT CAST(concat('n', 'ow', substr('#1', 3)) AS TIMESTAMP) AS x FROM items": "as a time",
    "SELECT id FROM items WHERE note = 'x\n== Optimized Logical Plan ==\n'": "heading",
    "SELECT id FROM items WHERE note = 'x\n== Analyzed Logical Plan ==\nid: int\nProject [id]\n\n"
    f"== Optimized Logical Plan ==\n== Physical Plan ==' OR note = reflect{_REFLECT}": "heading|reflect",
}  # fmt: skip

# What only Spark can tell: a column from a word that Spark knows, a text from a plan.
ONLY_SPARK_SEES = frozenset(
    query
    for query, found in HOSTILE.items()
    if found == "as a time" or "heading" in found or "session.secret" in query or "SELECT user " in query
)
