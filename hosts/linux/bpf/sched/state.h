// SPDX-License-Identifier: GPL-2.0
/* What host, loader and agent share, and the truth about threads and cores. Part of sched.bpf.c. */

#include "shared/protocol.h"
#include "shared/sched.h"

#define SLOTS_MAX (1 << 16)
/* Of one enclave: each CPU is one. */
#define CONTEXTS_MAX CPUS_MAX

/* Beside the codes: the thread is about to be in its DSQ; this was no decision at all. */
enum { EARLY = CODES + 1, MALFORMED };

/* And those of the other enclaves. */
#define FIFO_DSQ 1ull
#define FIRST_DSQ 16ull
/* How often a decision may come before its thread is in its DSQ. Many times, where the CPU that is about to put it
 * there is a virtual one that waits for its turn. */
#define EARLY_MAX 100000
/* Decisions that one dispatch answers at most. */
#define LOOKS_MAX 64

const volatile struct layout layout = { .all_cores = 1, .enclaves = 1 };

#define all_cores layout.all_cores
#define subjects layout.subjects

_Static_assert(sizeof(struct control) == 128, "two lines");
_Static_assert(sizeof(struct thread) == 64, "a line");
_Static_assert(sizeof(struct core) == 256, "four lines");

/* A producing context: a core, or a CPU outside the enclave. Both words are `epoch << INDEX_BITS | index`, so that
 * one exchange takes a place in a window's queue: beside the CPU, another may push in its place. */
struct context {
	u64 produced;
	u64 credit;
};
#define INDEX_BITS 48
/* How often a place may be lost to another that pushes. */
#define PUSHES_MAX 8

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, ENCLAVES_MAX);
	__type(key, u32);
	__type(value, struct control);
	__uint(map_flags, BPF_F_MMAPABLE);
} control SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, SLOTS_MAX);
	__type(key, u32);
	__type(value, struct thread);
	__uint(map_flags, BPF_F_MMAPABLE);
} threads SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, CPUS_MAX);
	__type(key, u32);
	__type(value, struct core);
	__uint(map_flags, BPF_F_MMAPABLE);
} core_states SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, ENCLAVES_MAX * CONTEXTS_MAX);
	__type(key, u32);
	__type(value, struct context);
} contexts SEC(".maps");

struct line {
	u64 words[LINE_WORDS];
};

struct window {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__uint(key_size, sizeof(u32));
	__uint(value_size, sizeof(struct line));
	__uint(map_flags, BPF_F_MMAPABLE | BPF_F_INNER_MAP);
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, ENCLAVES_MAX * WINDOWS);
	__uint(key_size, sizeof(u32));
	__uint(value_size, sizeof(u32));
	__array(values, struct window);
} windows SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_QUEUE);
	__uint(max_entries, SLOTS_MAX);
	__type(value, u32);
} free_slots SEC(".maps");

/* Which enclave a task joins that does not inherit one; the first, if nothing is said. Who decides joins none. */
struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, u32);
} enclave_of_task SEC(".maps");

struct bell {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 4096);
};

/* What the loader has to do for an enclave: BELL_AGENT or BELL_CONTROL. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, ENCLAVES_MAX);
	__uint(key_size, sizeof(u32));
	__uint(value_size, sizeof(u32));
	__array(values, struct bell);
} bells SEC(".maps");

struct timer {
	struct bpf_timer timer;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct timer);
} timers SEC(".maps");

struct turned_out turned_out;

/* Where the kernel has mapped the rings of decisions of each window, if they lie in a device's memory (otherwise 0):
 * they are read there, uncached, and nothing is ever written. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, ENCLAVES_MAX * WINDOWS);
	__type(key, u32);
	__type(value, u64);
} far_rings SEC(".maps");
