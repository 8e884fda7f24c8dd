// SPDX-License-Identifier: GPL-2.0
/* State shared by the program, the loader and the agent, and the source of truth on threads and cores. Part of
 * sched.bpf.c. */

#include "shared/protocol.h"
#include "shared/sched.h"

#define SLOTS_MAX (1 << 16)
/* Most contexts of one enclave: one per CPU. */
#define CONTEXTS_MAX CPUS_MAX

/* Results beside the outcome codes: the thread is not in its DSQ yet; the entry is no decision at all. */
enum { EARLY = CODES + 1, MALFORMED };

/* The first enclave's FIFO; those of the other enclaves follow. */
#define FIFO_DSQ 1ull
#define FIRST_DSQ 16ull
/* Most looks at a decision that comes before its thread is in its DSQ. There may be many if the CPU that is about to
 * put the thread there is a virtual one that waits for its turn. */
#define EARLY_MAX 100000
/* Most decisions that one dispatch answers. */
#define LOOKS_MAX 64

const volatile struct layout layout = { .all_cores = 1, .enclaves = 1 };

#define all_cores layout.all_cores
#define subjects layout.subjects

_Static_assert(sizeof(struct control) == 128, "two lines");
_Static_assert(sizeof(struct thread) == 64, "a line");
_Static_assert(sizeof(struct core) == 256, "four lines");

/* A producing context: a core, or a CPU outside the enclave. Both words are `epoch << INDEX_BITS | index`, so that one
 * compare-and-swap reserves an entry in a window's queue: another CPU may push in this CPU's place at the same time. */
struct context {
	u64 produced;
	u64 credit;
};
#define INDEX_BITS 48
/* Most attempts to reserve an entry while other CPUs push. */
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

/* The enclave that a task joins if it does not inherit one; the first if there is no entry. Agents join none. */
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

/* Requests to the loader, per enclave: BELL_AGENT or BELL_CONTROL. */
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

/* Where the kernel has mapped each window's rings of decisions, if these are in a device's memory (otherwise 0): they
 * are read there, uncached, and never written. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, ENCLAVES_MAX * WINDOWS);
	__type(key, u32);
	__type(value, u64);
} far_rings SEC(".maps");
