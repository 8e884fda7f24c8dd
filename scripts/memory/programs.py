#!/usr/bin/env python3
"""Programs that are not ours under `wave memory run`: what they save, and what it costs them.

    sudo scripts/memory/programs.py target/release/wave memcached fork ...

Cases: memcached, memcached-no-crawler, jvm, jvm-slow (a quarter of jvm's garbage, so that G1 marks a quarter as often), jvm-gc, fork,
two, incompressible, scan; all of them without a name.
Needs root, zram, Python, and for some cases memcached and a JDK. A row per case:

    resident  of the program at the end, MiB
    net       in zram less what zram takes for it, by the kernel's own count: mean over the second half, MiB
    told      net savings as the run itself reports them at the end, MiB (host and agent subtracted)
    refaults  pages read back from swap a second (pswpin)
    speed     rounds of the program's hot loop a second, second half of the run / before it
"""

import argparse
import glob
import json
import os
import random
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time

MIB = 1 << 20
JAVA = """
import java.util.*;
public class Cold {
    static final class Node { Node next; long a, b; byte[] bytes; }
    static Node cold; static int[] hot = new int[8 << 20]; static byte[] garbage; static volatile long rounds;
    public static void main(String[] args) throws Exception {
        int bytes = Integer.parseInt(args[0]);
        boolean gc = args.length > 1;
        Random random = new Random(1);
        for (int at = 0; at < 2_200_000; at++) {
            Node node = new Node(); node.next = cold; node.a = at; node.b = random.nextLong();
            node.bytes = new byte[136]; for (int i = 0; i < 68; i++) node.bytes[i] = (byte) random.nextInt();
            cold = node;
        }
        new Thread(() -> { try { while (true) { Thread.sleep(1000); System.out.println("rounds " + rounds); } } catch (Exception e) {} }).start();
        System.out.println("ready"); System.out.flush();
        long last = System.currentTimeMillis();
        while (true) {
            for (int at = 0; at < hot.length; at += 16) hot[at] += at;
            garbage = new byte[bytes]; rounds++;
            Thread.sleep(5);
            if (gc && System.currentTimeMillis() - last > 30_000) { System.gc(); last = System.currentTimeMillis(); }
        }
    }
}
"""


def filled(mib, noise):
    """Memory of which this share does not compress."""
    page = lambda: os.urandom(int(4096 * noise)).ljust(4096, b"x")
    return bytearray(b"".join(page() for _ in range(mib * 256)))


def program(kind):
    """Runs as the program itself: prints `ready`, then its rounds each second."""
    memory = filled({"fork": 460, "two": 435, "incompressible": 300, "scan": 512}[kind], 1.0 if kind == "incompressible" else 0.5)
    rounds = [0]

    def tell():
        while True:
            time.sleep(1)
            print("rounds", rounds[0], flush=True)

    def fork():
        while True:
            time.sleep(0.1)
            child = os.fork()
            if child == 0:
                time.sleep(0.03)
                os._exit(0)
            os.waitpid(child, 0)

    print("ready", flush=True)
    threading.Thread(target=tell, daemon=True).start()
    if kind == "fork":
        threading.Thread(target=fork, daemon=True).start()
    hot = {"fork": 92, "two": 0, "incompressible": 32, "scan": 512}[kind] * MIB
    view = memoryview(memory)
    while True:
        for at in range(0, hot, MIB):
            memory.count(b"never there", at, at + MIB) if kind == "scan" else sum(view[at : at + MIB : 4096])
        rounds[0] += 1
        if kind == "two":
            time.sleep(0.005)


class Memcached:
    KEYS, BYTES = 330_000, 1000

    def __init__(self, crawler):
        self.port = 21000 + os.getpid() % 10000
        options = [] if crawler else ["-o", "no_lru_crawler"]
        self.process = subprocess.Popen(["memcached", "-u", "nobody", "-m", "1024", "-l", "127.0.0.1", "-p", str(self.port)] + options)
        time.sleep(0.5)
        client = socket.create_connection(("127.0.0.1", self.port))
        for key in range(self.KEYS):
            value = os.urandom(self.BYTES // 2).ljust(self.BYTES, b"x")
            client.sendall(b"set key%d 0 0 %d noreply\r\n%s\r\n" % (key, self.BYTES, value))
        self.rounds = 0
        threading.Thread(target=self.ask, args=(client,), daemon=True).start()

    def ask(self, client):
        """Multigets of a fifth of the keys."""
        reader = client.makefile("rb")
        draw = random.Random(1)
        while True:
            keys = [b"key%d" % draw.randrange(self.KEYS // 5) for _ in range(20)]
            client.sendall(b"get " + b" ".join(keys) + b"\r\n")
            while (line := reader.readline()) != b"END\r\n":
                reader.read(int(line.split()[3]) + 2)
            self.rounds += 1
            time.sleep(0.002)


class Printing:
    def __init__(self, command, **more):
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, **more)
        self.rounds = 0
        assert any("ready" in line for line in self.process.stdout)
        threading.Thread(target=self.listen, daemon=True).start()

    def listen(self):
        for line in self.process.stdout:
            if found := re.match(r"rounds (\d+)", line):
                self.rounds = int(found[1])


def start(case):
    if case.startswith("memcached"):
        return [Memcached(case == "memcached")]
    if case.startswith("jvm"):
        folder = tempfile.mkdtemp()
        open(folder + "/Cold.java", "w").write(JAVA)
        subprocess.run(["javac", "-d", folder, folder + "/Cold.java"], check=True)
        more = ["50000" if case == "jvm-slow" else "200000"] + (["gc"] if case == "jvm-gc" else [])
        log = f"-Xlog:gc:file={folder}/gc.log"
        return [Printing(["java", "-Xmx1g", log, "-cp", folder, "Cold"] + more)]
    command = [sys.executable, os.path.abspath(__file__), "--program", case]
    return [Printing(command) for _ in range(2 if case == "two" else 1)]


def zram():
    """Bytes that all zram devices hold, and take."""
    used = [line.split()[0] for line in open("/proc/swaps") if line.startswith("/dev/zram")]
    sizes = [open(f"/sys/block/{os.path.basename(path)}/mm_stat").read().split() for path in used]
    return sum(int(size[0]) for size in sizes), sum(int(size[2]) for size in sizes)


def pswpin():
    return next(int(line.split()[1]) for line in open("/proc/vmstat") if line.startswith("pswpin "))


def resident(pid):
    return next(int(line.split()[1]) for line in open(f"/proc/{pid}/status") if line.startswith("VmRSS")) / 1024


def measure(wave, case, seconds, extra):
    programs = start(case)
    speed = lambda time_s: (lambda before: (time.sleep(time_s), sum(p.rounds for p in programs) - before)[1] / time_s)(sum(p.rounds for p in programs))
    time.sleep(2)
    before = speed(8)
    at_start = sum(resident(p.process.pid) for p in programs)
    swapped_in = pswpin()
    runs = []
    for number, each in enumerate(programs):
        command = [wave, "memory", "run", "--pid", str(each.process.pid), "--seconds", str(seconds), "--json", "--quiet"] + extra
        run = subprocess.Popen(command + ["--zram", "2GiB"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        time.sleep(1.5)
        if run.poll() is not None and number > 0:
            # As its refusal advises.
            run = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        runs.append(run)
    began, savings, during, half = time.time(), [], None, None
    while all(run.poll() is None for run in runs) and time.time() - began < seconds - 3:
        time.sleep(1)
        if time.time() - began > seconds / 2:
            half = half or (time.time(), sum(p.rounds for p in programs))
            held, taken = zram()
            savings.append((held - taken) / MIB)
            taken_now, swap_now = taken / MIB, held / MIB
    during = (sum(p.rounds for p in programs) - half[1]) / (time.time() - half[0])
    at_end, refaults = sum(resident(p.process.pid) for p in programs), (pswpin() - swapped_in) / (time.time() - began)
    told, compressed, notes = [], [], []
    for run in runs:
        out, errors = run.communicate()
        if not out:
            sys.exit(f"{case}: {errors}")
        result = json.loads(out)
        last = result["samples"][-1]
        told.append(result["net_saved_bytes"] / MIB)
        compressed.append((last.get("compressed_bytes") or 0) / MIB)
        notes.append({name: result.get(name) for name in ["resident_reduction", "held_back", "course", "refault_us", "stayed_bytes", "unclearable_batches", "incompressible_bytes", "daemon_core_share"]} | {"refaults": last["refaults"], "swept": last.get("swept"), "pages_out": last["pages_out"]})
    for each in programs:
        each.process.kill()
        each.process.wait()
    row = {
        "case": case,
        "resident_before": round(at_start, 1),
        "resident": round(at_end, 1),
        "net": round(sum(savings) / len(savings), 1),
        "told": [round(one, 1) for one in told],
        "refaults": round(refaults, 1),
        "speed": round(during / before, 3) if before else None,
        "zram_held": round(swap_now, 1),
        "zram_takes": round(taken_now, 1),
        "compressed": [round(one, 1) for one in compressed],
        "runs": notes,
    }
    print(json.dumps(row), flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", help=argparse.SUPPRESS)
    parser.add_argument("--seconds", type=int, default=120)
    parser.add_argument("--with", dest="extra", default="", help="more options of `wave memory run`")
    parser.add_argument("wave", nargs="?")
    parser.add_argument("case", nargs="*")
    arguments = parser.parse_args()
    if arguments.program:
        program(arguments.program)
    every = ["memcached", "memcached-no-crawler", "jvm", "jvm-slow", "jvm-gc", "fork", "two", "incompressible", "scan"]
    for case in arguments.case or every:
        measure(arguments.wave, case, arguments.seconds, arguments.extra.split())
