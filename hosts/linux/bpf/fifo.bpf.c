// SPDX-License-Identifier: GPL-2.0
/*
 * The baseline for measuring the mechanism (hosts/linux/examples/measure): a scheduler that decides by itself,
 * first in, first out, from one dispatch queue for all CPUs. It does nothing more, so the mechanism's extra cost
 * is the cost of moving the decision away. Nothing else loads it.
 */
#include "scx.h"

char LICENSE[] SEC("license") = "GPL";

#define FIFO_DSQ 1ull

s32 STRUCT_OPS(fifo_select_cpu, struct task_struct *p, s32 prev_cpu, u64 wake_flags)
{
	bool idle = false;
	s32 cpu = scx_bpf_select_cpu_dfl(p, prev_cpu, wake_flags, &idle);
	if (idle)
		dsq_insert(p, SCX_DSQ_LOCAL, SCX_SLICE_DFL, 0);
	return cpu;
}

void STRUCT_OPS(fifo_enqueue, struct task_struct *p, u64 enq_flags)
{
	dsq_insert(p, FIFO_DSQ, SCX_SLICE_DFL, enq_flags);
}

void STRUCT_OPS(fifo_dispatch, s32 cpu, struct task_struct *prev)
{
	dsq_move_to_local(FIFO_DSQ);
}

s32 STRUCT_OPS_SLEEPABLE(fifo_init)
{
	return scx_bpf_create_dsq(FIFO_DSQ, -1);
}

SEC(".struct_ops.link")
struct sched_ext_ops fifo = {
	.select_cpu = (void *)fifo_select_cpu,
	.enqueue = (void *)fifo_enqueue,
	.dispatch = (void *)fifo_dispatch,
	.init = (void *)fifo_init,
	.flags = SCX_OPS_SWITCH_PARTIAL,
	.timeout_ms = 30000,
	.name = "fifo",
};
