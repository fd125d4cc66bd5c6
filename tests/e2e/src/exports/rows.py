# Prints what DuckDB and pyarrow read of a folder of Parquet files, each as a list of rows.
import json
import sys

import duckdb
import pyarrow.dataset

folder = sys.argv[1]
duckdb.sql("SET TimeZone = 'UTC'")
rows = duckdb.sql(
    f"""
    SELECT host, strftime(date, '%Y-%m-%d'), hour, vm, probe, kind, numbers['n'], arguments['n'], unix_ns,
           epoch_us(time), strftime(time, '%Y-%m-%d %H'), symbol
    FROM read_parquet('{folder}/**/*.parquet', hive_partitioning = true)
    ORDER BY unix_ns, numbers['n']
    """
).fetchall()

columns = ["host", "date", "hour", "vm", "probe", "kind", "numbers", "arguments", "unix_ns", "time", "symbol"]
dataset = pyarrow.dataset.dataset(folder, format="parquet", partitioning="hive")
table = dataset.to_table(columns=columns).sort_by("unix_ns")
again = [
    [
        row["host"], row["date"], row["hour"], row["vm"], row["probe"], row["kind"], dict(row["numbers"])["n"],
        dict(row["arguments"])["n"], row["unix_ns"], int(row["time"].timestamp() * 1_000_000 + 0.5),
        row["time"].strftime("%Y-%m-%d %H"), row["symbol"],
    ]
    for row in table.to_pylist()
]
print(json.dumps({"duckdb": rows, "pyarrow": again}))
