// SPDX-License-Identifier: GPL-2.0
/* Records what threads do, from the kernel's own tracepoints: switches, wake-ups, creation and exit. Decides nothing.
 * Events that find no room are counted, and nothing here grows.
 *
 * A thread is named by its id and a part of its start time, so that a reused id names another thread. */
#include "kernel.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>
#include <bpf/bpf_core_read.h>

#include "shared/record.h"

/* Most threads followed at a time. */
#define WATCHED_MAX 65536
/* Size of the buffer for events that have not been taken yet, in bytes. */
#define RING_BYTES (16 << 20)
/* Most ancestors of a thread that are searched for the requested process. */
#define ANCESTORS_MAX 32

struct pid_namespace;

struct upid {
	int nr;
	struct pid_namespace *ns;
} WAVE_CO_RE;

struct pid {
	unsigned int level;
	struct upid numbers[1];
} WAVE_CO_RE;

struct task_struct {
	int pid;
	int tgid;
	/* A byte in newer kernels; unsigned, so that its size is relocated. */
	u32 on_cpu;
	unsigned int __state;
	u64 start_time;
	char comm[NAME_BYTES];
	struct task_struct *real_parent;
	struct task_struct *group_leader;
	struct pid *thread_pid;
} WAVE_CO_RE;

struct bpf_iter__task {
	struct task_struct *task;
} WAVE_CO_RE;

const volatile struct settings settings = {};
struct counts counts = {};

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, RING_BYTES);
} events SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, WATCHED_MAX);
	__type(key, struct who);
	__type(value, u8);
} watched SEC(".maps");

/* The kind of thread that a CPU runs, according to its last event. */
enum { UNTOLD, IDLE, OTHER, RECORDED };

struct cpu {
	/* Depth of nested interrupts. */
	int interrupts;
	u32 told;
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct cpu);
} cpus SEC(".maps");

static __always_inline struct who name_of(struct task_struct *task)
{
	/* Bits 16 to 47 of the time: steps of 65 us, unique for three days. */
	return (struct who){ .pid = task->pid, .born = (u32)(task->start_time >> 16) };
}

/* Idle threads have the id 0; the recorder itself is not recorded. */
static __always_inline bool is_watched(struct task_struct *task, const struct who *who)
{
	if (!who->pid || (u32)task->tgid == (u32)(counts.recorder >> 32))
		return false;
	return settings.scope == SCOPE_ALL || bpf_map_lookup_elem(&watched, who);
}

static __always_inline bool watch(const struct who *who)
{
	u8 one = 1;

	if (settings.scope == SCOPE_ALL || !bpf_map_update_elem(&watched, who, &one, BPF_ANY))
		return true;
	__sync_fetch_and_add(&counts.unfollowed, 1);
	return false;
}

static __always_inline void fill(struct event *event, u8 kind, struct who who)
{
	event->time_ns = bpf_ktime_get_ns();
	event->who = who;
	event->other = (struct who){};
	event->cpu = bpf_get_smp_processor_id();
	event->kind = kind;
	event->doing = 0;
	event->process = 0;
}

/* Events wake nobody: the recorder polls. Otherwise it would record its own wake-ups. */
static __always_inline struct event *begin(u8 kind, struct who who)
{
	struct event *event = bpf_ringbuf_reserve(&events, sizeof(*event), 0);

	if (event)
		fill(event, kind, who);
	else
		__sync_fetch_and_add(&counts.dropped, 1);
	return event;
}

static __always_inline struct named *begin_named(u8 kind, struct task_struct *task, struct who who)
{
	struct named *named = bpf_ringbuf_reserve(&events, sizeof(*named), 0);

	if (!named) {
		__sync_fetch_and_add(&counts.dropped, 1);
		return 0;
	}
	fill(&named->event, kind, who);
	named->event.process = task->tgid;
	bpf_probe_read_kernel_str(named->name, sizeof(named->name), &task->comm);
	return named;
}

static __always_inline void end(void *event)
{
	bpf_ringbuf_submit(event, BPF_RB_NO_WAKEUP);
}

/* A wake-up from an interrupt is not attributed to the interrupted thread. Interrupts are counted by their own
 * tracepoints, because the location of the kernel's own count varies. */
static __always_inline int interrupt(int change)
{
	u32 first = 0;
	struct cpu *cpu = bpf_map_lookup_elem(&cpus, &first);

	if (!cpu)
		return 0;
	/* An interrupt that began before its tracepoint was enabled ends without a beginning. */
	if (change > 0 || cpu->interrupts > 0)
		cpu->interrupts += change;
	return cpu->interrupts;
}

/* Notes what this CPU runs from now on, and returns whether that is a change. Interrupts do not switch threads, so an
 * interrupt whose end was not seen is over. */
static __always_inline bool is_news(u32 runs)
{
	u32 first = 0;
	struct cpu *cpu = bpf_map_lookup_elem(&cpus, &first);
	bool news;

	if (!cpu)
		return true;
	news = cpu->told != runs;
	cpu->interrupts = 0;
	cpu->told = runs;
	return news;
}

#define INTERRUPT(name, change)                                                                                   \
	SEC("tp_btf/" #name)                                                                                      \
	int BPF_PROG(on_##name)                                                                                   \
	{                                                                                                         \
		interrupt(change);                                                                                \
		return 0;                                                                                         \
	}

INTERRUPT(irq_handler_entry, 1)
INTERRUPT(irq_handler_exit, -1)
INTERRUPT(softirq_entry, 1)
INTERRUPT(softirq_exit, -1)
INTERRUPT(hrtimer_expire_entry, 1)
INTERRUPT(hrtimer_expire_exit, -1)

SEC("tp_btf/sched_switch")
int BPF_PROG(on_switch, bool preempt, struct task_struct *prev, struct task_struct *next, unsigned int prev_state)
{
	struct who from = name_of(prev), to = name_of(next);
	bool leaves = is_watched(prev, &from), comes = is_watched(next, &to);
	/* TASK_DEAD: the thread never runs again. */
	bool dead = !preempt && (prev_state & 0x80);
	struct event *event;

	/* For switches between unrecorded threads, only whether the CPU is idle matters. */
	if (!is_news(comes ? RECORDED : to.pid ? OTHER : IDLE) && !leaves && !comes)
		return 0;
	event = begin(SWITCH, leaves ? from : (struct who){});
	if (event) {
		if (comes)
			event->other = to;
		else
			event->process = next->tgid;
		event->doing = dead ? DEAD : !preempt && prev_state ? BLOCKED : RUNNABLE;
		end(event);
	}
	if (dead && leaves)
		bpf_map_delete_elem(&watched, &from);
	return 0;
}

SEC("tp_btf/sched_waking")
int BPF_PROG(on_waking, struct task_struct *task)
{
	struct who who = name_of(task), waker;
	struct task_struct *current = bpf_get_current_task_btf();
	struct event *event;

	if (!is_watched(task, &who) || interrupt(0))
		return 0;
	waker = name_of(current);
	if (!is_watched(current, &waker))
		return 0;
	event = begin(WAKING, who);
	if (event) {
		event->other = waker;
		end(event);
	}
	return 0;
}

static __always_inline int woken(struct task_struct *task)
{
	struct who who = name_of(task);
	struct event *event;

	if (!is_watched(task, &who))
		return 0;
	event = begin(WAKEUP, who);
	if (event)
		end(event);
	return 0;
}

SEC("tp_btf/sched_wakeup")
int BPF_PROG(on_wakeup, struct task_struct *task)
{
	return woken(task);
}

SEC("tp_btf/sched_wakeup_new")
int BPF_PROG(on_wakeup_new, struct task_struct *task)
{
	return woken(task);
}

SEC("tp_btf/sched_process_fork")
int BPF_PROG(on_fork, struct task_struct *parent, struct task_struct *child)
{
	struct who maker = name_of(parent), who = name_of(child);
	bool follows = is_watched(parent, &maker);
	bool ours = settings.scope == SCOPE_CHILDREN && bpf_get_current_pid_tgid() == counts.recorder;
	struct named *named;

	/* The recorder's own threads are not its children. */
	if (ours && child->tgid == parent->tgid)
		return 0;
	if (!follows && !ours)
		return 0;
	if (!watch(&who))
		return 0;
	named = begin_named(MADE, child, who);
	if (named) {
		if (follows)
			named->event.other = maker;
		end(named);
	}
	return 0;
}

SEC("tp_btf/sched_process_exit")
int BPF_PROG(on_exit, struct task_struct *task)
{
	struct who who = name_of(task);
	struct named *named;

	if (!is_watched(task, &who))
		return 0;
	named = begin_named(EXIT, task, who);
	if (named)
		end(named);
	return 0;
}

static __always_inline bool is_root(struct task_struct *leader, struct pid_namespace *ours)
{
	struct pid *pid = leader->thread_pid;
	struct upid own = {};

	if (!pid || bpf_core_read(&own, sizeof(own), &pid->numbers[0]) < 0)
		return false;
	if (pid->level)
		bpf_probe_read_kernel(&own, sizeof(own), (void *)__builtin_preserve_access_index(&pid->numbers[0])
							+ (u64)pid->level * bpf_core_type_size(struct upid));
	return own.nr == (int)settings.root && own.ns == ours;
}

static __always_inline struct pid_namespace *own_namespace(void)
{
	struct pid *pid = bpf_get_current_task_btf()->thread_pid;
	struct upid own = {};

	if (!pid)
		return 0;
	bpf_probe_read_kernel(&own, sizeof(own), (void *)__builtin_preserve_access_index(&pid->numbers[0])
						+ (u64)pid->level * bpf_core_type_size(struct upid));
	return own.ns;
}

static __always_inline bool descends(struct task_struct *task)
{
	struct pid_namespace *ours = own_namespace();
	struct task_struct *leader = task->group_leader;

	for (int up = 0; up < ANCESTORS_MAX; up++) {
		if (!leader)
			return false;
		if (is_root(leader, ours))
			return true;
		if (leader->pid <= 1)
			return false;
		leader = leader->real_parent->group_leader;
	}
	return false;
}

/* Lists existing threads: run once more after the tracepoints are enabled, and again at the end, for names. */
SEC("iter/task")
int seen(struct bpf_iter__task *context)
{
	struct task_struct *task = context->task;
	struct named *named;
	struct who who;

	counts.recorder = bpf_get_current_pid_tgid();
	if (!task)
		return 0;
	who = name_of(task);
	if (!is_watched(task, &who)) {
		if (settings.scope != SCOPE_TREE || (u32)task->tgid == (u32)(counts.recorder >> 32) || !descends(task))
			return 0;
		if (!watch(&who))
			return 0;
	}
	__sync_fetch_and_add(&counts.followed, 1);
	named = begin_named(SEEN, task, who);
	if (named) {
		named->event.doing = task->on_cpu ? RUNNING : task->__state ? BLOCKED : RUNNABLE;
		end(named);
	}
	return 0;
}

char LICENSE[] SEC("license") = "GPL";
