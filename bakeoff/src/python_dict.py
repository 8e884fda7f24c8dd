# A dict of keys and values of 256 bytes, of which some are looked up at a fixed rate for ever.
# Words: bytes of memory, lookups per second, seed. Prints how many lookups were made.
import random
import sys
import time

ENTRY_BYTES = 400  # value, key, and their place in the dict
VALUE_BYTES = 256
NEWEST = 5  # one fifth
NEWEST_LOOKUPS = 0.95
TICK_SECONDS = 0.002
TELL_SECONDS = 0.02

memory_bytes, rate, seed = int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])
chance = random.Random(seed)
count = max(memory_bytes // ENTRY_BYTES, NEWEST)
# Half of a value can be compressed.
half = bytes(VALUE_BYTES // 2)
table = {key: chance.randbytes(VALUE_BYTES // 2) + half for key in range(count)}
newest = count - count // NEWEST

began = time.monotonic()
done, told = 0, None
while True:
    now = time.monotonic() - began
    due = int(now * rate)
    while done < due:
        if chance.random() < NEWEST_LOOKUPS:
            key = newest + int(chance.random() * (count - newest))
        else:
            key = int(chance.random() * newest)
        table[key][0]
        done += 1
    if told is None or now > told + TELL_SECONDS:
        told = now
        print(max(done, 1), flush=True)
    time.sleep(TICK_SECONDS)
