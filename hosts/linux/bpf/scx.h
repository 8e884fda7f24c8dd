/* SPDX-License-Identifier: GPL-2.0 */
/* The parts of sched_ext that the mechanism uses, named as in the kernel so that libbpf finds them in its BTF. */
#ifndef WAVE_SCX_H
#define WAVE_SCX_H

#include "kernel.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>

struct cpumask {
	unsigned long bits[1];
} WAVE_CO_RE;

struct scx_dispatch_q {
	u64 id;
} WAVE_CO_RE;

struct sched_ext_entity {
	struct scx_dispatch_q *dsq;
	u32 flags;
	u64 slice;
	u64 dsq_vtime;
} WAVE_CO_RE;

struct task_struct {
	s32 pid;
	u32 flags;
	u32 policy;
	s32 prio;
	/* A byte in newer kernels; unsigned, so that its size is relocated. */
	u32 on_cpu;
	s32 nr_cpus_allowed;
	const struct cpumask *cpus_ptr;
	u16 migration_disabled;
	struct sched_ext_entity scx;
} WAVE_CO_RE;

struct scx_init_task_args {
	bool fork;
} WAVE_CO_RE;

struct scx_exit_task_args;

struct scx_exit_info {
	const char *reason;
	char *msg;
} WAVE_CO_RE;

/* libbpf matches members by name; members missing here stay unset. */
struct sched_ext_ops {
	s32 (*select_cpu)(struct task_struct *p, s32 prev_cpu, u64 wake_flags);
	void (*enqueue)(struct task_struct *p, u64 enq_flags);
	void (*dispatch)(s32 cpu, struct task_struct *prev);
	void (*running)(struct task_struct *p);
	void (*stopping)(struct task_struct *p, bool runnable);
	void (*quiescent)(struct task_struct *p, u64 deq_flags);
	bool (*yield)(struct task_struct *from, struct task_struct *to);
	void (*set_cpumask)(struct task_struct *p, const struct cpumask *cpumask);
	s32 (*init_task)(struct task_struct *p, struct scx_init_task_args *args);
	void (*enable)(struct task_struct *p);
	void (*disable)(struct task_struct *p);
	void (*cpu_online)(s32 cpu);
	void (*cpu_offline)(s32 cpu);
	s32 (*init)(void);
	void (*exit)(struct scx_exit_info *info);
	u64 flags;
	u32 timeout_ms;
	char name[128];
};

struct bpf_iter_scx_dsq {
	u64 __opaque[6];
} __attribute__((aligned(8)));

struct bpf_iter_num {
	u64 __opaque[1];
} __attribute__((aligned(8)));

struct bpf_timer {
	u64 __opaque[2];
} __attribute__((aligned(8)));

#define PF_EXITING 0x4u
#define PF_KTHREAD 0x200000u
/* Priorities below this belong to the real-time classes. */
#define MAX_RT_PRIO 100
#define SCHED_EXT 7

#define SCX_DSQ_GLOBAL 0x8000000000000001ull
#define SCX_DSQ_LOCAL 0x8000000000000002ull
/* Or'ed with the number of a CPU. */
#define SCX_DSQ_LOCAL_ON 0xc000000000000000ull
#define SCX_SLICE_DFL 20000000ull
#define SCX_SLICE_INF 0xffffffffffffffffull
#define SCX_DEQ_SLEEP 1ull
#define SCX_ENQ_WAKEUP 1ull
#define SCX_ENQ_PREEMPT (1ull << 32)
#define SCX_KICK_IDLE 1ull
#define SCX_KICK_PREEMPT 2ull
#define SCX_TASK_QUEUED 1u
#define SCX_OPS_ENQ_LAST 2ull
#define SCX_OPS_SWITCH_PARTIAL 8ull
/* A queued task's attributes change: the kernel dequeues it and enqueues it again at once. */
#define ENQUEUE_RESTORE 2ull

/* For kernels 6.13 and later; the second form of each is the newer one. */
bool scx_bpf_dsq_insert___v2(struct task_struct *p, u64 dsq, u64 slice, u64 flags) __ksym __weak;
void scx_bpf_dsq_insert___v1(struct task_struct *p, u64 dsq, u64 slice, u64 flags) __ksym __weak;
bool scx_bpf_dsq_move_to_local___v2(u64 dsq, u64 flags) __ksym __weak;
bool scx_bpf_dsq_move_to_local___v1(u64 dsq) __ksym __weak;
bool scx_bpf_dsq_move(struct bpf_iter_scx_dsq *it, struct task_struct *p, u64 dsq, u64 flags) __ksym;
void scx_bpf_dsq_move_set_slice(struct bpf_iter_scx_dsq *it, u64 slice) __ksym;
s32 scx_bpf_create_dsq(u64 dsq, s32 node) __ksym;
void scx_bpf_kick_cpu(s32 cpu, u64 flags) __ksym;
s32 scx_bpf_select_cpu_dfl(struct task_struct *p, s32 prev_cpu, u64 wake_flags, bool *is_idle) __ksym;
s32 scx_bpf_dsq_nr_queued(u64 dsq) __ksym;
int bpf_iter_scx_dsq_new(struct bpf_iter_scx_dsq *it, u64 dsq, u64 flags) __ksym;
struct task_struct *bpf_iter_scx_dsq_next(struct bpf_iter_scx_dsq *it) __ksym;
void bpf_iter_scx_dsq_destroy(struct bpf_iter_scx_dsq *it) __ksym;
bool bpf_cpumask_test_cpu(u32 cpu, const struct cpumask *cpumask) __ksym;
void bpf_rcu_read_lock(void) __ksym;
void bpf_rcu_read_unlock(void) __ksym;

/* 6.18 and later. */
struct task_struct *scx_bpf_cpu_curr(s32 cpu) __ksym __weak;
bool scx_bpf_task_set_slice(struct task_struct *p, u64 slice) __ksym __weak;

static __always_inline void set_slice(struct task_struct *p, u64 slice)
{
	if (bpf_ksym_exists(scx_bpf_task_set_slice))
		scx_bpf_task_set_slice(p, slice);
	else
		p->scx.slice = slice;
}

bool scx_bpf_task_set_dsq_vtime(struct task_struct *p, u64 vtime) __ksym __weak;

static __always_inline void set_note(struct task_struct *p, u64 note)
{
	if (bpf_ksym_exists(scx_bpf_task_set_dsq_vtime))
		scx_bpf_task_set_dsq_vtime(p, note);
	else
		p->scx.dsq_vtime = note;
}

static __always_inline void dsq_insert(struct task_struct *p, u64 dsq, u64 slice, u64 flags)
{
	if (bpf_ksym_exists(scx_bpf_dsq_insert___v2))
		scx_bpf_dsq_insert___v2(p, dsq, slice, flags);
	else
		scx_bpf_dsq_insert___v1(p, dsq, slice, flags);
}

static __always_inline bool dsq_move_to_local(u64 dsq)
{
	if (bpf_ksym_exists(scx_bpf_dsq_move_to_local___v2))
		return scx_bpf_dsq_move_to_local___v2(dsq, 0);
	return scx_bpf_dsq_move_to_local___v1(dsq);
}

#define STRUCT_OPS(name, args...) SEC("struct_ops/" #name) BPF_PROG(name, ##args)
#define STRUCT_OPS_SLEEPABLE(name, args...) SEC("struct_ops.s/" #name) BPF_PROG(name, ##args)

#endif
