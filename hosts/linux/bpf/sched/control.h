// SPDX-License-Identifier: GPL-2.0
/* The loader's entry points, the watchdog's timer, CPU hotplug, start and end. Part of sched.bpf.c. */

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

SEC("syscall")
int wave_take(struct take *take)
{
	u32 slot = take->slot;
	struct thread *thread = bpf_map_lookup_elem(&threads, &slot);
	if (slot >= subjects || !thread || state_of(READ(thread->word)) != STATE_RUNNABLE || thread->in_fifo)
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

/* Repeats a preemption whose ring came while a higher class had the CPU, which sched_ext then does not interrupt. This
 * is not done at the ring itself: the agent and the ringing thread may be on that very CPU, and only for a moment. */
__noinline int look_after(u32 at)
{
	struct control *control = control_of(enclave_of_core(at));
	struct core *core = bpf_map_lookup_elem(&core_states, &at);
	if (control && core && !refuse(at) && !(READ(core->record) & 1 << 24) && is_unwanted(at, core, control))
		scx_bpf_kick_cpu(cpu_of(at), SCX_KICK_PREEMPT);
	return 0;
}

/* The kernel itself queues a thread behind a core's run if the thread exits or cannot be moved now. As that run may be
 * endless, a run with a thread behind it for a whole round is preempted. */
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

/* Turns an agent out if the control thread no longer watches it, and makes idle cores look for threads left parked.
 * Looks after cores that cannot look at their decisions themselves, four times within the patience after which an agent
 * is turned out. Preempts all runs if threads wait in the FIFO for a whole round, as an agent's slices may be endless.
 */
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
