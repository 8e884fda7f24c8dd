// SPDX-License-Identifier: GPL-2.0
/*
 * The mechanism of thread scheduling: tells an agent what happens to threads, and carries out what it decides.
 *
 * The protocol is wave-core's (core/src/host.rs, queue.rs, layout.rs); the loader computes where everything lies
 * in the window. Each thread waits in a dispatch queue (DSQ) of its own, so that finding it takes one look-up.
 *
 *   enqueue: thread's DSQ, message NEW, WAKEUP, PREEMPT or YIELD      | without an agent: the host's FIFO
 *   dispatch: FIFO first; then the core's next decision, checked, moved to the CPU, answered
 *
 * Who is running, and where, is in `threads`: the truth, which no agent can write. A thread that may not run on
 * every core of the enclave, or for which there is no slot, stays with the host and runs from the FIFO.
 *
 * Enclaves are CPUs that belong to no other. Each has a window, an agent and a FIFO of its own; `at` is a core among
 * those of all of them. Which enclave a thread joins is said by the loader (`enclave_of_task`), and inherited.
 *
 * Threads come one by one, or all of the machine's (`wave_all`). Then there is no class above but the real-time ones, and
 * kernel threads, the loader and agents come first by the host's hand.
 */
#include "scx.h"

char LICENSE[] SEC("license") = "GPL";

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

#define READ(x) (*(const volatile typeof(x) *)&(x))
#define WRITE(x, value) (*(volatile typeof(x) *)&(x) = (value))

static __always_inline const volatile struct places *places_of(u32 enclave)
{
	return &layout.places[enclave & (ENCLAVES_MAX - 1)];
}

static __always_inline struct control *control_of(u32 enclave)
{
	return bpf_map_lookup_elem(&control, &enclave);
}

static __always_inline u32 enclave_of_core(u32 at)
{
	return layout.enclave_of_core[at & (CPUS_MAX - 1)];
}

static __always_inline u32 cpu_of(u32 at)
{
	return layout.cpu_of_core[at & (CPUS_MAX - 1)];
}

/* Of a core, as its own agent knows it. */
static __always_inline u32 own_number(u32 at)
{
	return at - places_of(enclave_of_core(at))->first_core;
}

static __always_inline void ring(u32 enclave, u64 what)
{
	void *bell = bpf_map_lookup_elem(&bells, &enclave);
	if (bell)
		bpf_ringbuf_output(bell, &what, sizeof(what), BPF_RB_FORCE_WAKEUP);
}

/* What was stored before is seen by the agent before anything is loaded after. An atomic exchange is such a fence by
 * itself. But an emulator that runs all CPUs in one thread makes plain stores of them, as no other CPU can tell the
 * difference; an agent outside the machine can. There, reading the clock takes a lock, which is one. */
static __always_inline void fence(const volatile struct places *places)
{
	if (places->clock_is_fence)
		bpf_ktime_get_ns();
}

/* The window of an epoch, if there is one. */
static __always_inline void *window_of(u32 enclave, u64 epoch)
{
	u32 at = enclave * WINDOWS + epoch % WINDOWS;
	return bpf_map_lookup_elem(&windows, &at);
}

static __always_inline struct line *line_at(void *window, u32 at)
{
	return bpf_map_lookup_elem(window, &at);
}

static __always_inline u64 far_rings_of(u32 enclave, u64 epoch)
{
	u32 at = enclave * WINDOWS + epoch % WINDOWS;
	u64 *far = bpf_map_lookup_elem(&far_rings, &at);
	return far ? READ(*far) : 0;
}

static __always_inline void lose(struct control *control, u32 enclave)
{
	if (!READ(control->lost)) {
		WRITE(control->lost, 1);
		ring(enclave, 1);
	}
}

static __always_inline void blame(struct control *control, u32 enclave)
{
	if (!READ(control->fault)) {
		WRITE(control->fault, 1);
		ring(enclave, 1);
	}
}

struct entry {
	u64 words[6];
};

/* An index into a window's queue; 0 where it is of an older window. */
static __always_inline u64 index_of(u64 word, u64 epoch)
{
	return word >> INDEX_BITS == (epoch & 0xffff) ? word & ((1ull << INDEX_BITS) - 1) : 0;
}

/* Pushes an entry into a context's queue of messages, if there is an agent; sees whether it sleeps. */
static __noinline int push(u32 enclave, u32 at, u64 tag, struct entry *entry)
{
	u32 key = enclave * CONTEXTS_MAX + at;
	const volatile struct places *places = places_of(enclave);
	struct control *control = control_of(enclave);
	struct context *context = bpf_map_lookup_elem(&contexts, &key);
	if (!control || !context || !entry)
		return 0;
	u64 epoch = READ(control->epoch);
	void *window = window_of(enclave, epoch);
	if (!window)
		return 0;
	u64 entries = 1ull << places->messages_shift, produced = 0;
	int tries;
	for (tries = 0; tries < PUSHES_MAX; tries++) {
		u64 place = READ(context->produced);
		/* Whoever was slower than a change of windows has nothing to tell the new agent. */
		if (READ(control->epoch) != epoch)
			return 0;
		produced = index_of(place, epoch);
		u64 consumed = index_of(READ(context->credit), epoch);
		if (produced - consumed >= entries) {
			struct line *credit = line_at(window, places->messages_credit + at);
			consumed = credit ? READ(credit->words[0]) : 0;
			if (READ(context->produced) != place)
				continue;
			if (consumed > produced) {
				blame(control, enclave);
				return 0;
			}
			if (produced - consumed >= entries) {
				lose(control, enclave);
				return 0;
			}
			WRITE(context->credit, epoch << INDEX_BITS | consumed);
		}
		if (__sync_val_compare_and_swap(&context->produced, place, epoch << INDEX_BITS | (produced + 1)) == place)
			break;
	}
	if (tries == PUSHES_MAX) {
		lose(control, enclave);
		return 0;
	}
	u64 slot = produced & (entries - 1);
	struct line *line = line_at(window, places->messages_first + (at << places->messages_shift) + slot);
	if (!line)
		return 0;
#pragma unroll
	for (int word = 0; word < 6; word++)
		WRITE(line->words[word], entry->words[word]);
	u64 lap = (produced >> places->messages_shift) + 1;
	/* The exchange orders: what is above before it, and the look below after it. */
	__sync_lock_test_and_set(&line->words[LAP_WORD], lap << 32 | tag);
	fence(places);
	struct line *parked = line_at(window, places->agent_parked);
	if (parked && READ(parked->words[0]) == PARKED)
		ring(enclave, 0);
	return 0;
}

static __always_inline u64 state_of(u64 word)
{
	return word >> 32 & 0xff;
}

static __always_inline u64 word_of(u32 sequence, u64 state, u32 core)
{
	return (u64)core << 48 | state << 32 | sequence;
}

static __always_inline u32 this_context(u32 enclave)
{
	u32 cpu = bpf_get_smp_processor_id();
	return places_of(enclave)->context_of_cpu[cpu & (CPUS_MAX - 1)];
}

static __always_inline u32 core_here(void)
{
	u32 cpu = bpf_get_smp_processor_id();
	return layout.core_of_cpu[cpu & (CPUS_MAX - 1)];
}

/* This CPU, as the enclave's agent knows it. */
static __always_inline u32 place_in(u32 enclave)
{
	u32 at = core_here();
	return at < all_cores && enclave_of_core(at) == enclave ? own_number(at) : 0xffff;
}

/* Moves a thread to a new state, and tells it. */
static __always_inline void tell(struct thread *thread, u32 slot, u64 state, u64 kind, u64 ran_ns)
{
	u32 sequence = (u32)thread->word + 1;
	__sync_lock_test_and_set(&thread->word, word_of(sequence, state, 0));
	u64 place = place_in(thread->enclave);
	struct entry entry = { {
		(u64)thread->generation << 32 | slot,
		place << 32 | sequence,
		ran_ns,
	} };
	push(thread->enclave, this_context(thread->enclave), kind << 16 | 5, &entry);
}

/* A task notes its slot, and its enclave above it, where sched_ext keeps an order of its own for it, which nobody
 * uses here. It may be an old slot: that says itself whose it is. */
static __always_inline struct thread *thread_of(struct task_struct *p, u32 *slot)
{
	*slot = p->scx.dsq_vtime;
	struct thread *thread = bpf_map_lookup_elem(&threads, slot);
	return thread && thread->task == (u64)p ? thread : 0;
}

/* Whether the task may run on every core of the enclave. */
static __always_inline bool fits(u32 enclave, const struct cpumask *mask, s32 allowed)
{
	const volatile struct places *places = places_of(enclave);
	if (allowed >= (s32)layout.cpus_possible)
		return true;
	for (u32 core = 0; core < CPUS_MAX && core < places->cores; core++) {
		if (!bpf_cpumask_test_cpu(cpu_of(places->first_core + core), mask))
			return false;
	}
	return true;
}

/* Who waits for no decision, where all threads are here: kernel threads, the loader and agents. */
static __always_inline bool comes_first(struct task_struct *p)
{
	if (!layout.everything)
		return false;
	if (p->flags & PF_KTHREAD)
		return true;
	u32 *enclave = bpf_task_storage_get(&enclave_of_task, p, 0, 0);
	return enclave && *enclave == NO_ENCLAVE;
}

static __always_inline u32 enclave_of(struct task_struct *p)
{
	u32 enclave = p->scx.dsq_vtime >> 32;
	return enclave < layout.enclaves ? enclave : 0;
}

static __always_inline void join(struct task_struct *p, u32 enclave)
{
	u32 slot;
	struct control *control = control_of(enclave);
	if (!control)
		return;
	/* No enclave takes the others' share. */
	if (__sync_fetch_and_add(&control->held, 1) >= subjects / layout.enclaves ||
	    bpf_map_pop_elem(&free_slots, &slot)) {
		__sync_fetch_and_add(&control->held, -1);
		__sync_fetch_and_add(&control->without_slot, 1);
		return;
	}
	struct thread *thread = bpf_map_lookup_elem(&threads, &slot);
	if (!thread) {
		__sync_fetch_and_add(&control->held, -1);
		return;
	}
	set_note(p, (u64)enclave << 32 | slot);
	thread->task = (u64)p;
	thread->enclave = enclave;
	thread->generation++;
	thread->pid = p->pid;
	thread->fresh = 1;
	thread->yielded = thread->in_fifo = thread->narrow = 0;
	thread->early = 0;
	/* Nothing to tell until it is runnable. */
	__sync_lock_test_and_set(&thread->word, word_of((u32)thread->word, FREE, 0));
}

static __always_inline void leave(struct task_struct *p, u64 kind)
{
	u32 slot;
	struct thread *thread = thread_of(p, &slot);
	if (!thread)
		return;
	if (!thread->fresh)
		tell(thread, slot, FREE, kind, 0);
	thread->task = 0;
	thread->fresh = 0;
	thread->pid = 0;
	struct control *control = control_of(thread->enclave);
	if (control)
		__sync_fetch_and_add(&control->held, -1);
	bpf_map_push_elem(&free_slots, &slot, BPF_ANY);
}

/* What the loader says of a task holds for the children that it starts before it joins. */
s32 STRUCT_OPS(wave_init_task, struct task_struct *p, struct scx_init_task_args *args)
{
	struct task_struct *parent = bpf_get_current_task_btf();
	if (!args->fork || parent->policy == SCHED_EXT)
		return 0;
	u32 *parents = bpf_task_storage_get(&enclave_of_task, parent, 0, 0);
	if (!parents)
		return 0;
	u32 *enclave = bpf_task_storage_get(&enclave_of_task, p, 0, BPF_LOCAL_STORAGE_GET_F_CREATE);
	if (!enclave)
		return -12 /* ENOMEM */;
	*enclave = *parents;
	return 0;
}

void STRUCT_OPS(wave_enable, struct task_struct *p)
{
	/* A child is enabled by its parent, and of its enclave. */
	struct task_struct *parent = bpf_get_current_task_btf();
	u32 *said = bpf_task_storage_get(&enclave_of_task, p, 0, 0);
	u32 enclave = 0;
	if (said && *said < layout.enclaves)
		enclave = *said;
	else if (parent != p && parent->policy == SCHED_EXT)
		enclave = enclave_of(parent);
	set_note(p, (u64)enclave << 32);
	if (!comes_first(p) && fits(enclave, p->cpus_ptr, p->nr_cpus_allowed))
		join(p, enclave);
}

void STRUCT_OPS(wave_disable, struct task_struct *p)
{
	leave(p, p->flags & PF_EXITING ? DEAD : DEPARTED);
}

void STRUCT_OPS(wave_set_cpumask, struct task_struct *p, const struct cpumask *mask)
{
	u32 slot, enclave = enclave_of(p);
	struct thread *thread = thread_of(p, &slot);
	bool fitting = !comes_first(p) && fits(enclave, p->cpus_ptr, p->nr_cpus_allowed);
	if (fitting && !thread) {
		join(p, enclave);
	} else if (!fitting && thread) {
		thread->narrow = 1;
		leave(p, DEPARTED);
	}
}

/* No CPU is chosen for a wakeup: that is what the agent decides. */
s32 STRUCT_OPS(wave_select_cpu, struct task_struct *p, s32 prev_cpu, u64 wake_flags)
{
	return prev_cpu;
}

/* Wakes a core that sleeps, for a task of the FIFO that may run there. */
static __always_inline void kick_for(u32 enclave, struct task_struct *p)
{
	const volatile struct places *places = places_of(enclave);
	for (u32 core = 0; core < CPUS_MAX && core < places->cores; core++) {
		u32 cpu = cpu_of(places->first_core + core);
		if (bpf_cpumask_test_cpu(cpu, p->cpus_ptr))
			scx_bpf_kick_cpu(cpu, SCX_KICK_IDLE);
	}
}

void STRUCT_OPS(wave_enqueue, struct task_struct *p, u64 enq_flags)
{
	u32 slot = 0;
	struct thread *thread = thread_of(p, &slot);
	u32 enclave = thread ? thread->enclave : enclave_of(p);
	struct control *control = control_of(enclave);
	if (comes_first(p)) {
		/* An agent that was a thread as any other until it came. */
		leave(p, DEPARTED);
		/* At once when it wakes, as with a class of its own; among themselves they take turns. */
		u64 at_once = enq_flags & SCX_ENQ_WAKEUP ? SCX_ENQ_PREEMPT : 0;
		dsq_insert(p, SCX_DSQ_LOCAL, SCX_SLICE_DFL, enq_flags | at_once);
		return;
	}
	if (!thread || !control) {
		const volatile struct places *places = places_of(enclave);
		bool inside = false;
		for (u32 core = 0; core < CPUS_MAX && core < places->cores; core++)
			inside |= bpf_cpumask_test_cpu(cpu_of(places->first_core + core), p->cpus_ptr);
		if (!inside) {
			dsq_insert(p, SCX_DSQ_GLOBAL, SCX_SLICE_DFL, enq_flags);
			return;
		}
		dsq_insert(p, FIFO_DSQ + enclave, SCX_SLICE_DFL, enq_flags);
		kick_for(enclave, p);
		return;
	}
	u64 before = state_of(thread->word);
	bool runs_on = before == RUNNING && (enq_flags & ENQUEUE_RESTORE) && p->on_cpu;
	bool parks = READ(control->agent_decides);
	thread->in_fifo = !parks;
	thread->early = 0;
	thread->stuck = 0;
	thread->slice = 0;
	if (parks)
		dsq_insert(p, FIRST_DSQ + slot, SCX_SLICE_INF, enq_flags);
	else
		dsq_insert(p, FIFO_DSQ + enclave, SCX_SLICE_DFL, enq_flags);
	if (!parks)
		kick_for(enclave, p);
	/* Its attributes changed while it ran, and it goes on; or it waited, and still does. */
	if (runs_on || (before == RUNNABLE && !thread->fresh))
		return;
	u64 kind = WAKEUP;
	u64 ran_ns = 0;
	if (thread->fresh) {
		kind = NEW;
	} else if (before == RUNNING) {
		kind = thread->yielded ? YIELD : PREEMPT;
		ran_ns = thread->ran_ns;
	}
	thread->fresh = thread->yielded = 0;
	tell(thread, slot, RUNNABLE, kind, ran_ns);
}

void STRUCT_OPS(wave_running, struct task_struct *p)
{
	u32 slot;
	struct thread *thread = thread_of(p, &slot);
	u32 at = core_here();
	struct core *core = bpf_map_lookup_elem(&core_states, &at);
	if (thread) {
		u32 place = place_in(thread->enclave);
		thread->started_ns = bpf_ktime_get_ns();
		if (thread->slice) {
			set_slice(p, thread->slice);
			thread->slice = 0;
		}
		if (state_of(thread->word) != RUNNING || thread->word >> 48 != place)
			__sync_lock_test_and_set(&thread->word, word_of((u32)thread->word, RUNNING, place));
	}
	/* A run that no decision began: an agent must not believe that the core waits for it. */
	if (at < all_cores && core && READ(core->record) & 1 << 24)
		__sync_lock_test_and_set(&core->record, (core->record & ~(1ull << 24)) + (1ull << 32));
}

void STRUCT_OPS(wave_stopping, struct task_struct *p, bool runnable)
{
	u32 slot;
	struct thread *thread = thread_of(p, &slot);
	if (thread)
		thread->ran_ns = bpf_ktime_get_ns() - thread->started_ns;
}

bool STRUCT_OPS(wave_yield, struct task_struct *from, struct task_struct *to)
{
	u32 slot;
	struct thread *thread = thread_of(from, &slot);
	if (thread)
		thread->yielded = 1;
	return false;
}

void STRUCT_OPS(wave_quiescent, struct task_struct *p, u64 deq_flags)
{
	u32 slot;
	struct thread *thread = thread_of(p, &slot);
	if (!thread || !(deq_flags & SCX_DEQ_SLEEP))
		return;
	if (thread->fresh) {
		/* It ran when it joined: nobody has heard of it yet. */
		__sync_lock_test_and_set(&thread->word, word_of((u32)thread->word, FREE, 0));
		return;
	}
	u64 before = state_of(thread->word);
	thread->yielded = 0;
	tell(thread, slot, BLOCKED_STATE, BLOCKED, before == RUNNING ? thread->ran_ns : 0);
}

/* Why a thread could not be moved from its DSQ to this core. If it is there twice, it may be moved to others only: a
 * CPU on its way offline takes none, before anybody is told. */
static __noinline int why_not(u32 at, u32 slot)
{
	u32 cpu = cpu_of(at);
	struct thread *thread = bpf_map_lookup_elem(&threads, &slot);
	int code = EARLY;
	struct bpf_iter_scx_dsq it;
	bpf_rcu_read_lock();
	if (!bpf_iter_scx_dsq_new(&it, FIRST_DSQ + slot, 0)) {
		struct task_struct *p = bpf_iter_scx_dsq_next(&it);
		if (p && (!bpf_cpumask_test_cpu(cpu, p->cpus_ptr) || p->migration_disabled)) {
			code = AFFINITY;
		} else if (p && thread) {
			code = thread->stuck ? CPU_OFFLINE : EARLY;
			thread->stuck = 1;
		}
	}
	bpf_iter_scx_dsq_destroy(&it);
	bpf_rcu_read_unlock();
	return code;
}

/* Checks a decision for this core and commits it (core/src/host.rs, Mechanism::apply). */
static __noinline int commit(u32 at, u32 slot, u32 generation, u32 sequence, u64 slice)
{
	struct thread *thread = bpf_map_lookup_elem(&threads, &slot);
	if (slot >= subjects || !thread)
		return TARGET_NOT_FOUND;
	u64 word = READ(thread->word);
	if (thread->generation != generation)
		return TARGET_NOT_FOUND;
	if (thread->enclave != enclave_of_core(at))
		return NOT_PERMITTED;
	if (state_of(word) == FREE)
		return thread->narrow ? AFFINITY : TARGET_NOT_FOUND;
	if ((u32)word != sequence)
		return TARGET_STALE;
	if (state_of(word) == RUNNING)
		return TARGET_ON_CPU;
	if (state_of(word) != RUNNABLE || thread->in_fifo)
		return TARGET_NOT_RUNNABLE;
	/* It is alone there. */
	int code = dsq_move_to_local(FIRST_DSQ + slot) ? COMPLETE : why_not(at, slot);
	if (code == COMPLETE) {
		thread->slice = slice;
		__sync_val_compare_and_swap(&thread->word, word, word_of(sequence, RUNNING, own_number(at)));
	} else if (code == EARLY && ++thread->early > EARLY_MAX) {
		thread->early = 0;
		return TARGET_NOT_RUNNABLE;
	}
	return code;
}

/* The test of the queues has no threads (model.bpf.c). */
#ifndef COMMIT
#define COMMIT commit
#endif

/* What became of one look at a core's queue of decisions. */
enum look { NOTHING, REFUSED, COMMITTED, TOO_EARLY };

/* `refusal`: not a CPU's own look, but another's that answers all with this code in its place. */
static __always_inline int look_with(u32 at, u32 refusal)
{
	u32 enclave = enclave_of_core(at), own = own_number(at);
	const volatile struct places *places = places_of(enclave);
	struct control *control = control_of(enclave);
	struct core *core = bpf_map_lookup_elem(&core_states, &at);
	if (!control || !core || at >= all_cores)
		return NOTHING;
	u64 epoch = core->epoch;
	void *window = window_of(enclave, epoch);
	if (!window)
		return NOTHING;
	u64 consumed = core->consumed;
	u64 slot = consumed & ((1ull << places->decisions_shift) - 1);
	u64 ring = (own << places->decisions_shift) + slot;
	u64 lap, subject, second, slice;
	u64 far = places->decisions_far ? far_rings_of(enclave, epoch) : 0;
	if (far) {
		const u64 *line = (const u64 *)(far + ring * sizeof(struct line));
		u64 words[3];
		if (bpf_probe_read_kernel(&lap, sizeof(lap), line + LAP_WORD) ||
		    lap >> 32 != (consumed >> places->decisions_shift) + 1 ||
		    bpf_probe_read_kernel(words, sizeof(words), line))
			return NOTHING;
		subject = words[0], second = words[1], slice = words[2];
	} else {
		struct line *line = line_at(window, places->decisions_first + ring);
		if (!line)
			return NOTHING;
		lap = READ(line->words[LAP_WORD]);
		if (lap >> 32 != (consumed >> places->decisions_shift) + 1)
			return NOTHING;
		subject = READ(line->words[0]), second = READ(line->words[1]), slice = READ(line->words[2]);
	}
	u32 txn = second >> 32 & TXN_MASK;
	u32 code;
	if ((lap & 0xff) != 3) {
		/* Not a decision at all: passed over without an answer. */
		blame(control, enclave);
		code = MALFORMED;
	} else if ((lap >> 8 & 0xff) == FLAG_ATOMIC) {
		code = UNSUPPORTED;
	} else if (lap >> 8 & 0xff) {
		code = INVALID_FLAGS;
	} else if ((lap >> 16 & 0xffff) != DECISION_RUN) {
		code = UNSUPPORTED_VERSION;
	} else if (refusal) {
		code = refusal;
	} else {
		code = COMMIT(at, subject, subject >> 32, second, slice);
		if (code == EARLY) {
			core->early++;
			return TOO_EARLY;
		}
	}
	core->consumed = consumed + 1;
	if (core->consumed - core->credited >= 1ull << places->decisions_shift >> 2) {
		struct line *credit = line_at(window, places->decisions_credit + own);
		core->credited = core->consumed;
		if (credit)
			WRITE(credit->words[0], core->consumed);
	}
	if (code == MALFORMED)
		return REFUSED;
	u64 run = core->record >> 32;
	u64 asks = code != COMPLETE && code != CPU_OFFLINE && code != CPU_UNAVAIL;
	if (code == COMPLETE)
		run = (u32)(run + 1);
	if (code < CODES)
		core->outcomes[code]++;
	/* The core's record first: a snapshot that is taken now tells no less than the message. */
	__sync_lock_test_and_set(&core->record, run << 32 | asks << 24 | txn);
	struct entry entry = { { run << 32 | (u64)txn << 8 | code } };
	u64 flags = FLAG_OUTCOME | (asks ? FLAG_ASKS : 0);
	push(enclave, own, (u64)KIND_NONE << 16 | flags << 8 | 1, &entry);
	return code == COMPLETE ? COMMITTED : REFUSED;
}

__noinline int look(u32 at)
{
	return look_with(at, 0);
}

/* Programs that may not move threads can do this. */
__noinline int refuse_one(u32 at, u32 refusal)
{
	return refusal ? look_with(at, refusal) : NOTHING;
}

/* Looks until something was committed, or nothing is left. */
static __always_inline bool serve(u32 at)
{
	for (int looks = 0; looks < LOOKS_MAX; looks++) {
		int found = look(at);
		if (found == COMMITTED)
			return true;
		if (found == NOTHING)
			return false;
		if (found == TOO_EARLY)
			break;
	}
	/* More is there: come back. */
	scx_bpf_kick_cpu(cpu_of(at), 0);
	return true;
}

static __always_inline void set_parked(struct core *core, u32 at, u64 parked)
{
	u32 enclave = enclave_of_core(at);
	void *window = window_of(enclave, core->epoch);
	u32 line = places_of(enclave)->core_status + own_number(at);
	struct line *status = window ? line_at(window, line) : 0;
	core->parked = parked;
	if (status)
		__sync_lock_test_and_set(&status->words[0], parked);
	fence(places_of(enclave));
}

static __noinline int ask(u32 at)
{
	struct core *core = bpf_map_lookup_elem(&core_states, &at);
	struct entry entry = {};
	if (!core)
		return 0;
	__sync_lock_test_and_set(&core->record, core->record | 1 << 24);
	push(enclave_of_core(at), own_number(at), (u64)KIND_NONE << 16 | FLAG_ASKS << 8, &entry);
	return 0;
}

/* Threads that an agent left parked, when there is none any more. */
static __noinline int rescue(u32 at)
{
	u32 enclave = enclave_of_core(at);
	struct control *control = control_of(enclave);
	struct core *core = bpf_map_lookup_elem(&core_states, &at);
	if (!control || !core)
		return 0;
	u64 tick = READ(control->tick);
	if (core->scanned == tick)
		return 0;
	u32 slot;
	bpf_for(slot, 0, subjects)
	{
		struct thread *thread = bpf_map_lookup_elem(&threads, &slot);
		if (thread && state_of(READ(thread->word)) == RUNNABLE && !thread->in_fifo &&
		    thread->enclave == enclave && dsq_move_to_local(FIRST_DSQ + slot))
			return 1;
	}
	core->scanned = tick;
	return 0;
}

/* Nobody else looks at the core's decisions until release(). */
static __always_inline bool claim(struct core *core)
{
	return !__sync_lock_test_and_set(&core->claimed, 1);
}

static __always_inline void release(struct core *core)
{
	__sync_lock_test_and_set(&core->claimed, 0);
}

/* Turns to the current window. */
static __always_inline void come_over(struct core *core, struct control *control)
{
	u64 epoch = READ(control->epoch);
	if (core->epoch == epoch)
		return;
	core->consumed = core->credited = 0;
	core->parked = 0;
	__sync_lock_test_and_set(&core->record, core->record & ~(u64)TXN_MASK & ~(1ull << 24));
	__sync_lock_test_and_set(&core->epoch, epoch);
}

/* Whether a higher class has a CPU; where the kernel does not tell (before 6.18), none ever has. */
static __always_inline bool is_taken(u32 cpu)
{
	bool taken = false;
	if (!bpf_ksym_exists(scx_bpf_cpu_curr))
		return false;
	bpf_rcu_read_lock();
	struct task_struct *p = scx_bpf_cpu_curr(cpu);
	if (p && layout.everything)
		taken = p->pid && p->prio < MAX_RT_PRIO;
	else if (p)
		taken = p->pid && p->policy != SCHED_EXT && !(p->scx.flags & SCX_TASK_QUEUED);
	bpf_rcu_read_unlock();
	return taken;
}

/* For a core that cannot look at its decisions by itself: answers them, so that their threads can go elsewhere. It
 * asks again when it is back in dispatch. Returns whether it is such a core. */
__noinline int refuse(u32 at)
{
	struct control *control = control_of(enclave_of_core(at));
	struct core *core = bpf_map_lookup_elem(&core_states, &at);
	if (!control || !core || at >= all_cores || !claim(core))
		return 0;
	u32 code = READ(core->offline) ? CPU_OFFLINE : CPU_UNAVAIL;
	bool absent = code == CPU_OFFLINE || is_taken(cpu_of(at));
	if (absent) {
		int looks;
		come_over(core, control);
		bpf_for(looks, 0, LOOKS_MAX)
		{
			if (refuse_one(at, code) == NOTHING)
				break;
		}
	}
	release(core);
	return absent;
}

static __always_inline void serve_core(u32 at, struct task_struct *prev, struct core *core, struct control *control)
{
	come_over(core, control);
	if (core->parked)
		set_parked(core, at, 0);
	/* What is the host's own comes first: it is there for as long as an agent is not, and for tasks that
	 * cannot be the agent's. */
	if (dsq_move_to_local(FIFO_DSQ + enclave_of_core(at))) {
		core->fallback_switches++;
		return;
	}
	if (!READ(control->agent_decides)) {
		if (rescue(at))
			core->fallback_switches++;
		else if (prev && prev->scx.flags & SCX_TASK_QUEUED)
			set_slice(prev, SCX_SLICE_DFL);
		return;
	}
	/* What is left for it is answered in its place. */
	if (READ(core->offline))
		return;
	if (serve(at))
		return;
	/* Nobody else wants the core. */
	if (prev && prev->scx.flags & SCX_TASK_QUEUED && comes_first(prev)) {
		set_slice(prev, SCX_SLICE_DFL);
		return;
	}
	/* A run that was ended early (prev is still queued) is enqueued after this, and told as PREEMPT. */
	if (!(core->record & 1 << 24))
		ask(at);
	set_parked(core, at, PARKED);
	if (serve(at))
		set_parked(core, at, 0);
}

void STRUCT_OPS(wave_dispatch, s32 cpu, struct task_struct *prev)
{
	u32 at = layout.core_of_cpu[cpu & (CPUS_MAX - 1)];
	struct control *control = control_of(enclave_of_core(at));
	struct core *core = bpf_map_lookup_elem(&core_states, &at);
	if (at >= all_cores) {
		/* A CPU outside: what may run there is there already, and the last goes on. */
		if (prev && prev->scx.flags & SCX_TASK_QUEUED)
			set_slice(prev, SCX_SLICE_DFL);
		return;
	}
	if (!control || !core)
		return;
	if (!claim(core)) {
		/* Its decisions are being answered in its place: come back. */
		scx_bpf_kick_cpu(cpu, 0);
		return;
	}
	serve_core(at, prev, core, control);
	release(core);
}

/* Whether the agent wants the end of the core's run. */
static __always_inline bool is_unwanted(u32 at, struct core *core, struct control *control)
{
	u32 enclave = enclave_of_core(at);
	void *window = window_of(enclave, READ(control->epoch));
	u32 line = places_of(enclave)->preempt + own_number(at);
	struct line *word = window ? line_at(window, line) : 0;
	return word && READ(word->words[0]) == (1ull << 32 | READ(core->record) >> 32);
}

/* What the loader does for an agent that rings a core's doorbell. */
struct kick {
	u32 core;
};

SEC("syscall")
int wave_kick(struct kick *kick)
{
	u32 at = kick->core;
	u32 enclave = enclave_of_core(at);
	struct control *control = control_of(enclave);
	struct core *core = bpf_map_lookup_elem(&core_states, &at);
	if (at >= all_cores || !control || !core)
		return 1;
	if (READ(core->offline))
		return !refuse(at);
	u64 flags = is_unwanted(at, core, control) ? SCX_KICK_PREEMPT : SCX_KICK_IDLE;
	scx_bpf_kick_cpu(cpu_of(at), flags);
	return 0;
}

/* Gives a thread that waits for a decision to the host, for one run. */
struct take {
	u32 slot;
};

SEC("syscall")
int wave_take(struct take *take)
{
	u32 slot = take->slot;
	struct thread *thread = bpf_map_lookup_elem(&threads, &slot);
	if (slot >= subjects || !thread || state_of(READ(thread->word)) != RUNNABLE || thread->in_fifo)
		return 1;
	bool taken = false;
	struct bpf_iter_scx_dsq it;
	struct task_struct *p;
	bpf_rcu_read_lock();
	if (!bpf_iter_scx_dsq_new(&it, FIRST_DSQ + slot, 0)) {
		p = bpf_iter_scx_dsq_next(&it);
		if (p && p->pid == thread->pid) {
			scx_bpf_dsq_move_set_slice(&it, SCX_SLICE_DFL);
			taken = scx_bpf_dsq_move(&it, p, FIFO_DSQ + thread->enclave, 0);
			thread->in_fifo |= taken;
		}
	}
	bpf_iter_scx_dsq_destroy(&it);
	bpf_rcu_read_unlock();
	return !taken;
}

static __always_inline void kick_cores(u32 enclave, u64 flags)
{
	const volatile struct places *places = places_of(enclave);
	for (u32 core = 0; core < CPUS_MAX && core < places->cores; core++)
		scx_bpf_kick_cpu(cpu_of(places->first_core + core), flags);
}

/* In case the ring came while a higher class had the CPU, which sched_ext then leaves alone. Not from the ring itself:
 * the agent and the thread that rings may have just that CPU, and for a moment only. */
__noinline int look_after(u32 at)
{
	struct control *control = control_of(enclave_of_core(at));
	struct core *core = bpf_map_lookup_elem(&core_states, &at);
	if (control && core && !refuse(at) && !(READ(core->record) & 1 << 24) && is_unwanted(at, core, control))
		scx_bpf_kick_cpu(cpu_of(at), SCX_KICK_PREEMPT);
	return 0;
}

/* The kernel itself lets a thread wait behind a core's run, if it exits or may not be moved now: the run may have no
 * end. */
__noinline int look_behind(u32 at)
{
	struct core *core = bpf_map_lookup_elem(&core_states, &at);
	if (!core)
		return 0;
	u64 waits = scx_bpf_dsq_nr_queued(SCX_DSQ_LOCAL_ON | cpu_of(at)) > 0;
	if (waits && core->local_waits)
		scx_bpf_kick_cpu(cpu_of(at), SCX_KICK_PREEMPT);
	core->local_waits = waits;
	return 0;
}

/* Turns an agent out if nobody watches it any more, and lets idle cores look for what was left parked. Looks after
 * cores that cannot do it by themselves, four times within the patience after which an agent is turned out. Who is in
 * the FIFO waits for no run that has no end: an agent gives slices as it likes. */
static __noinline int watch(u32 enclave)
{
	struct control *control = control_of(enclave);
	if (!control)
		return 0;
	u64 now = bpf_ktime_get_ns(), beat = READ(control->beat);
	__sync_fetch_and_add(&control->tick, 1);
	if (READ(control->agent_decides) && now > beat && now - beat > places_of(enclave)->patience_ns) {
		WRITE(control->agent_decides, 0);
		__sync_fetch_and_add(&control->fallbacks, 1);
	}
	u32 core;
	bpf_for(core, 0, places_of(enclave)->cores) look_behind(places_of(enclave)->first_core + core);
	if (!READ(control->agent_decides)) {
		kick_cores(enclave, SCX_KICK_IDLE);
	} else {
		bpf_for(core, 0, places_of(enclave)->cores) look_after(places_of(enclave)->first_core + core);
	}
	bool waits = scx_bpf_dsq_nr_queued(FIFO_DSQ + enclave) > 0;
	if (waits && control->fifo_waits)
		kick_cores(enclave, SCX_KICK_PREEMPT);
	control->fifo_waits = waits;
	return 0;
}

static int on_timer(void *map, int *key, struct timer *timer)
{
	for (u32 enclave = 0; enclave < ENCLAVES_MAX && enclave < layout.enclaves; enclave++)
		watch(enclave);
	bpf_timer_start(&timer->timer, layout.round_ns, 0);
	return 0;
}

void STRUCT_OPS(wave_cpu_online, s32 cpu)
{
	u32 at = layout.core_of_cpu[cpu & (CPUS_MAX - 1)];
	struct core *core = bpf_map_lookup_elem(&core_states, &at);
	if (at < all_cores && core)
		WRITE(core->offline, 0);
}

void STRUCT_OPS(wave_cpu_offline, s32 cpu)
{
	u32 at = layout.core_of_cpu[cpu & (CPUS_MAX - 1)];
	struct core *core = bpf_map_lookup_elem(&core_states, &at);
	if (at < all_cores && core)
		WRITE(core->offline, 1);
}

s32 STRUCT_OPS_SLEEPABLE(wave_init)
{
	u32 zero = 0, slot, enclave;
	s32 error;
	bpf_for(enclave, 0, layout.enclaves)
	{
		error = scx_bpf_create_dsq(FIFO_DSQ + enclave, -1);
		if (error)
			return error;
	}
	bpf_for(slot, 0, subjects)
	{
		u32 value = slot;
		error = scx_bpf_create_dsq(FIRST_DSQ + slot, -1);
		if (error)
			return error;
		bpf_map_push_elem(&free_slots, &value, BPF_ANY);
	}
	struct timer *timer = bpf_map_lookup_elem(&timers, &zero);
	if (!timer)
		return -2;
	bpf_timer_init(&timer->timer, &timers, 1 /* CLOCK_MONOTONIC */);
	bpf_timer_set_callback(&timer->timer, on_timer);
	return bpf_timer_start(&timer->timer, layout.round_ns, 0);
}

void STRUCT_OPS(wave_exit, struct scx_exit_info *info)
{
	bpf_probe_read_kernel_str(turned_out.reason, sizeof(turned_out.reason), info->reason);
	bpf_probe_read_kernel_str(turned_out.message, sizeof(turned_out.message), info->msg);
}

#define CALLBACKS \
	.select_cpu = (void *)wave_select_cpu, \
	.enqueue = (void *)wave_enqueue, \
	.dispatch = (void *)wave_dispatch, \
	.running = (void *)wave_running, \
	.stopping = (void *)wave_stopping, \
	.quiescent = (void *)wave_quiescent, \
	.yield = (void *)wave_yield, \
	.set_cpumask = (void *)wave_set_cpumask, \
	.init_task = (void *)wave_init_task, \
	.enable = (void *)wave_enable, \
	.disable = (void *)wave_disable, \
	.cpu_online = (void *)wave_cpu_online, \
	.cpu_offline = (void *)wave_cpu_offline, \
	.init = (void *)wave_init, \
	.exit = (void *)wave_exit,

SEC(".struct_ops.link")
struct sched_ext_ops wave = {
	CALLBACKS
	.flags = SCX_OPS_SWITCH_PARTIAL | SCX_OPS_ENQ_LAST,
	.timeout_ms = 30000,
	.name = "wave",
};

/* The same, for all threads of the machine: the loader takes one of the two. */
SEC(".struct_ops.link")
struct sched_ext_ops wave_all = {
	CALLBACKS
	.flags = SCX_OPS_ENQ_LAST,
	.timeout_ms = 30000,
	.name = "wave_all",
};
