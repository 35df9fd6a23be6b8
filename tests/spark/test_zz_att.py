import pytest, os
from tests.spark.change_histories import World
from tests.spark.test_change_histories import change
A,B=map(int,os.environ["RANGE"].split(","))
@pytest.mark.parametrize("n", range(A,B))
def test_plain(n,tmp_path,monkeypatch): change(World(tmp_path,n,None,monkeypatch),int(os.environ.get("STEPS","20")))
@pytest.mark.parametrize("n", range(A,B))
def test_byengine(n,tmp_path,monkeypatch,spark): change(World(tmp_path,n,spark,monkeypatch),int(os.environ.get("STEPS","20")))
