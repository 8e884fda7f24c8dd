// SPDX-License-Identifier: GPL-2.0
/* What host, loader and agent share, and the truth about threads and cores. Part of sched.bpf.c. */

#define CPUS_MAX 1024
#define SLOTS_MAX (1 << 16)
/* A power of two. */
#define ENCLAVES_MAX 8
/* Of one enclave: each CPU is one. */
#define CONTEXTS_MAX CPUS_MAX
#define LINE_WORDS 8
#define LAP_WORD 7

/* core/src/message.rs */
#define KIND_NONE 0x8000
#define FLAG_ASKS 1
#define FLAG_OUTCOME 2
#define FLAG_ATOMIC 1
#define TXN_MASK 0xffffff
/* core/src/layout.rs */
#define PARKED 1ull
/* subsystems/sched/src/wire.rs */
enum kind { NEW = 1, WAKEUP, BLOCKED, YIELD, PREEMPT, DEAD, DEPARTED };
#define DECISION_RUN 1
/* core/src/outcome.rs. Those above CODES are all that this host answers; its tests provoke each of them. */
enum code {
	COMPLETE = 1,
	TARGET_ON_CPU = 3,
	TARGET_STALE = 4,
	TARGET_NOT_FOUND = 5,
	TARGET_NOT_RUNNABLE = 6,
	CPU_OFFLINE = 8,
	CPU_UNAVAIL = 9,
	INVALID_FLAGS = 10,
	NOT_PERMITTED = 12,
	UNSUPPORTED_VERSION = 15,
	AFFINITY = 17,
	UNSUPPORTED = 18,
	CODES = 19,
	/* Not answers: the thread is about to be in its DSQ; this was no decision at all. */
	EARLY,
	MALFORMED,
};
/* core/src/snapshot.rs */
enum state { FREE, RUNNABLE, RUNNING, BLOCKED_STATE };

/* And those of the other enclaves. */
#define FIFO_DSQ 1ull
#define FIRST_DSQ 16ull
/* How often a decision may come before its thread is in its DSQ. Many times, where the CPU that is about to put it
 * there is a virtual one that waits for its turn. */
#define EARLY_MAX 100000
/* Decisions that one dispatch answers at most. */
#define LOOKS_MAX 64

/* What the loader says before anything runs: of an enclave, where the parts of its window lie, in lines from its
 * start; rings are `1 << shift` lines each. As hosts/linux/src/sched/object.rs has it. */
struct places {
	u64 patience_ns;
	/* Its cores are `cores` ones from `first_core` on. */
	u32 cores, first_core;
	u32 agent_parked;
	u32 preempt;
	u32 core_status;
	u32 messages_first, messages_credit, messages_shift;
	u32 decisions_first, decisions_credit, decisions_shift;
	/* The rings of decisions lie in a device's memory (see far_rings). */
	u16 decisions_far;
	/* See fence(). */
	u16 clock_is_fence;
	/* The queue of messages of each CPU: the core's own, or one of a CPU outside the enclave. */
	u16 context_of_cpu[CPUS_MAX];
};

const volatile struct layout {
	u64 round_ns;
	u32 enclaves;
	u32 all_cores;
	u32 subjects;
	u32 cpus_possible;
	/* All threads of the machine are here, and not only those that joined. */
	u32 everything;
	u32 unused;
	struct places places[ENCLAVES_MAX];
	/* `all_cores` and more: none. */
	u16 core_of_cpu[CPUS_MAX];
	u16 cpu_of_core[CPUS_MAX];
	u16 enclave_of_core[CPUS_MAX];
} layout = { .all_cores = 1, .enclaves = 1 };

#define all_cores layout.all_cores
#define subjects layout.subjects

/* The loader and this side; nobody else sees it. */
struct control {
	u64 agent_decides;
	/* Bumped with each change of window; `windows[epoch % WINDOWS]` is the current one. */
	u64 epoch;
	/* When the control thread last looked, in ns of CLOCK_MONOTONIC. */
	u64 beat;
	/* Something went missing on the way to the agent. */
	u64 lost;
	/* The agent wrote what no agent of ours writes. */
	u64 fault;
	/* Counts the timer's rounds. */
	u64 tick;
	/* Joined without a slot left. */
	u64 without_slot;
	u64 fallbacks;
	/* Threads that have a slot. */
	u64 held;
	/* The timer's last round found somebody in the FIFO. */
	u64 fifo_waits;
	u64 unused[6];
};

struct thread {
	/* sequence | state << 32 | core << 48, as in a snapshot. */
	u64 word;
	u32 generation;
	u32 pid;
	u64 started_ns;
	u64 ran_ns;
	u32 early;
	u8 fresh;
	u8 yielded;
	u8 in_fifo;
	u8 enclave;
	/* The task's address, while the slot is its own. */
	u64 task;
	/* How long its next run may be, as its decision says; 0 is without end. */
	u64 slice;
	/* Left because of its affinity, and nobody has the slot since. */
	u8 narrow;
	/* It was in its DSQ when it could not be moved. */
	u8 stuck;
	u8 unused[6];
};

struct core {
	u64 epoch;
	u64 consumed;
	u64 credited;
	/* run << 32 | asks << 24 | txn of the last answer: what a snapshot tells. */
	u64 record;
	u32 parked;
	u32 offline;
	u64 scanned;
	u64 fallback_switches;
	u64 outcomes[CODES];
	/* Looks that came before the thread was in its DSQ. */
	u64 early;
	/* Somebody looks at its queue of decisions: the CPU itself, or another in its place. */
	u64 claimed;
	/* The timer's last round found somebody that waits behind its run, without a decision. */
	u64 local_waits;
	u64 unused[3];
};

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

/* Of each enclave. */
#define WINDOWS 4
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
#define NO_ENCLAVE (~0u)
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

/* What the loader has to do for an enclave: ring the agent (0), or look at `control` (1). */
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

/* Why the kernel turned us out. */
struct {
	char reason[128];
	char message[1024];
} turned_out;

/* Where the kernel has mapped the rings of decisions of each window, if they lie in a device's memory (otherwise 0):
 * they are read there, uncached, and nothing is ever written. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, ENCLAVES_MAX * WINDOWS);
	__type(key, u32);
	__type(value, u64);
} far_rings SEC(".maps");
