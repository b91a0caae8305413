"""All models of the zoo and its bad ones in one command: time on 1 and 2 threads, peak memory, and the reserve against it.

    python benches/zoo.py [--effort 1] [--threads 1,2]
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "python"))
from support import MQQ  # noqa: E402
from test_many import BAD, MODELS, write_zoo  # noqa: E402


def main():
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--effort", default="1")
    options.add_argument("--threads", default="1,2")
    options.add_argument("--memory", default="4G")
    options = options.parse_args()
    for threads in options.threads.split(","):
        with tempfile.TemporaryDirectory() as folder:
            zoo = write_zoo(Path(folder), {"backend": "tensorrt", "effort": int(options.effort)})
            command = [MQQ, "calibrate", *MODELS, *BAD, "--zoo", zoo, "--out-dir", Path(folder) / "out", "--json",
                       "--threads", threads, "--memory", options.memory]
            done = subprocess.run(command, capture_output=True, text=True)
            print(done.stderr)
            report = json.loads(done.stdout)
        states = [result["status"] for result in report["results"]]
        zoo = report["zoo"]
        print(f"effort {options.effort}, {threads} threads: {zoo['seconds']:.1f} s, peak {zoo['peak_bytes'] / 2**20:.0f} MiB "
              f"of {zoo['memory_bytes'] / 2**20:.0f}; " + ", ".join(f"{states.count(s)} {s}" for s in sorted(set(states))))
        for result in report["results"]:
            size = Path(result["model"]).stat().st_size / 2**20
            judged = result.get("summary", {}).get("tuning", {}).get("judged", {})
            overlap = judged["figures"][1] if judged else float("nan")
            print(f"| {Path(result['model']).stem} | {result['status']} | {overlap:.3f} | {size:.1f} | "
                  f"{result['peak_bytes'] / 2**20:.0f} | {result.get('summary', {}).get('seconds', 0):.1f} |", flush=True)


main()
