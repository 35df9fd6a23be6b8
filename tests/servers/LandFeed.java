import static java.nio.charset.StandardCharsets.UTF_8;

import io.debezium.embedded.Connect;
import io.debezium.engine.DebeziumEngine;
import io.debezium.engine.DebeziumEngine.RecordCommitter;
import io.debezium.engine.RecordChangeEvent;
import io.debezium.engine.format.ChangeEventFormat;
import java.io.IOException;
import java.io.Reader;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.TreeMap;
import org.apache.kafka.connect.data.Struct;
import org.apache.kafka.connect.json.JsonConverter;
import org.apache.kafka.connect.source.SourceRecord;

/**
 * Runs a Debezium engine and lands what it sends as JSON lines, whole files only: FEED/VARIANT/TABLE/dt=DAY/part-N.jsonl.
 * A variant is one setting of Kafka's JSON converter: land.VARIANT.schemas.enable=false. A row in the table `marks` begins
 * the day that it names; FEED/_begun-DAY says so.
 */
public class LandFeed {
    private final Path feed;
    private final Map<String, JsonConverter[]> variants = new TreeMap<>();
    private final String run = Long.toString(System.currentTimeMillis());  // files sort by name as they were written
    private String day;
    private int part;

    LandFeed(Properties settings) {
        feed = Path.of(settings.getProperty("land.feed"));
        day = settings.getProperty("land.day");
        for (String variant : settings.getProperty("land.variants").split(",")) {
            Map<String, Object> of = new HashMap<>();
            String prefix = "land." + variant + ".";
            settings.stringPropertyNames().stream().filter(name -> name.startsWith(prefix))
                .forEach(name -> of.put(name.substring(prefix.length()), settings.getProperty(name)));
            JsonConverter[] both = {new JsonConverter(), new JsonConverter()};
            both[0].configure(of, true);
            both[1].configure(of, false);
            variants.put(variant, both);
        }
    }

    void land(List<RecordChangeEvent<SourceRecord>> batch, RecordCommitter<RecordChangeEvent<SourceRecord>> committer)
            throws InterruptedException {
        try {
            Map<Path, StringBuilder> files = new TreeMap<>();
            for (RecordChangeEvent<SourceRecord> event : batch) {
                SourceRecord record = event.record();
                String table = record.topic().substring(record.topic().lastIndexOf('.') + 1);
                for (Map.Entry<String, JsonConverter[]> variant : variants.entrySet()) {
                    Path folder = feed.resolve(variant.getKey()).resolve(table).resolve("dt=" + day);
                    files.computeIfAbsent(folder, none -> new StringBuilder()).append(line(record, variant.getValue()));
                }
                if (table.equals("marks") && record.value() != null) {
                    write(files);
                    Struct value = (Struct) record.value();
                    Struct row = value.schema().field("after") == null ? value : value.getStruct("after");
                    String begun = row.getString("day");
                    day = begun.compareTo(day) > 0 ? begun : day;
                    Files.writeString(feed.resolve("_begun-" + begun), "");
                }
            }
            write(files);
            for (RecordChangeEvent<SourceRecord> event : batch) {
                committer.markProcessed(event);
            }
            committer.markBatchFinished();
        } catch (IOException error) {
            throw new IllegalStateException(error);
        }
    }

    private static String line(SourceRecord record, JsonConverter[] of) {
        byte[] key = of[0].fromConnectData(record.topic(), record.keySchema(), record.key());
        byte[] value = of[1].fromConnectData(record.topic(), record.valueSchema(), record.value());
        return "{\"key\":" + text(key) + ",\"value\":" + text(value) + "}\n";
    }

    private static String text(byte[] json) {
        return json == null ? "null" : new String(json, UTF_8);
    }

    private void write(Map<Path, StringBuilder> files) throws IOException {
        for (Map.Entry<Path, StringBuilder> file : files.entrySet()) {
            Files.createDirectories(file.getKey());
            String name = "part-" + run + "-" + (++part) + ".jsonl";
            Path unfinished = Files.writeString(file.getKey().resolve("." + name), file.getValue());
            Files.move(unfinished, file.getKey().resolve(name));
        }
        files.clear();
    }

    public static void main(String[] arguments) throws Exception {
        Properties settings = new Properties();
        try (Reader file = Files.newBufferedReader(Path.of(arguments[0]))) {
            settings.load(file);
        }
        LandFeed landing = new LandFeed(settings);
        try (DebeziumEngine<RecordChangeEvent<SourceRecord>> engine = DebeziumEngine.create(ChangeEventFormat.of(Connect.class))
                .using(settings).notifying(landing::land)
                .using((success, message, error) -> {
                    System.err.println("engine ended: " + message);
                    if (error != null) error.printStackTrace();
                }).build()) {
            engine.run();
        }
    }
}
