// SPDX-License-Identifier: GPL-2.0
/* Cores: they check, commit and answer decisions. Part of sched.bpf.c. */

/* Why a thread could not be moved from its DSQ to this core. If two attempts find it in the DSQ, the core must be going
 * offline: the kernel then moves no thread there, before it announces the CPU as offline. */
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
	if (state_of(word) == STATE_FREE)
		return thread->narrow ? AFFINITY : TARGET_NOT_FOUND;
	if ((u32)word != sequence)
		return TARGET_STALE;
	if (state_of(word) == STATE_RUNNING)
		return TARGET_ON_CPU;
	if (state_of(word) != STATE_RUNNABLE || thread->in_fifo)
		return TARGET_NOT_RUNNABLE;
	/* The thread is alone in its DSQ. */
	int code = dsq_move_to_local(FIRST_DSQ + slot) ? COMPLETE : why_not(at, slot);
	if (code == COMPLETE) {
		thread->slice = slice;
		__sync_val_compare_and_swap(&thread->word, word, word_of(sequence, STATE_RUNNING, own_number(at)));
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

/* Result of one look at a core's queue of decisions. */
enum look { NOTHING, REFUSED, COMMITTED, TOO_EARLY };

/* Looks at the next decision. With `refusal`, another CPU looks in the core's place, and answers with this code. */
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
		/* Not a decision at all: skipped without an answer. */
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
	/* The core's record first: a snapshot taken now must be at least as new as the message. */
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

/* Also for programs that may not move threads. */
__noinline int refuse_one(u32 at, u32 refusal)
{
	return refusal ? look_with(at, refusal) : NOTHING;
}

/* Looks until a decision is committed or none is left. */
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
	/* There are more: make the CPU dispatch again. */
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

/* Without an agent, runs a thread that an earlier agent left parked. */
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
		if (thread && state_of(READ(thread->word)) == STATE_RUNNABLE && !thread->in_fifo &&
		    thread->enclave == enclave && dsq_move_to_local(FIRST_DSQ + slot))
			return 1;
	}
	core->scanned = tick;
	return 0;
}

/* Claims the core's decisions: no other CPU looks at them until release(). */
static __always_inline bool claim(struct core *core)
{
	return !__sync_lock_test_and_set(&core->claimed, 1);
}

static __always_inline void release(struct core *core)
{
	__sync_lock_test_and_set(&core->claimed, 0);
}

/* Switches the core to the current window. */
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

/* Whether a higher class has a CPU; always false on kernels that do not say (before 6.18). */
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

/* If a core cannot look at its decisions itself, refuses them in its place, so that their threads can go elsewhere. The
 * core asks again when it is back in dispatch. Returns whether it is such a core. */
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
	/* The host's FIFO comes first: it holds all threads while there is no agent, and those that cannot be the
	 * agent's. */
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
	/* Another CPU answers the decisions left for an offline core. */
	if (READ(core->offline))
		return;
	if (serve(at))
		return;
	/* No other thread needs the core. */
	if (prev && prev->scx.flags & SCX_TASK_QUEUED && comes_first(prev)) {
		set_slice(prev, SCX_SLICE_DFL);
		return;
	}
	/* A preempted run (prev is still queued) is enqueued after this, and sends PREEMPT then. */
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
		/* A CPU outside all enclaves: threads that may run there are already queued there; prev continues. */
		if (prev && prev->scx.flags & SCX_TASK_QUEUED)
			set_slice(prev, SCX_SLICE_DFL);
		return;
	}
	if (!control || !core)
		return;
	if (!claim(core)) {
		/* Another CPU is answering this core's decisions: dispatch again. */
		scx_bpf_kick_cpu(cpu, 0);
		return;
	}
	serve_core(at, prev, core, control);
	release(core);
}

/* Whether the agent has asked for the end of the core's run. */
static __always_inline bool is_unwanted(u32 at, struct core *core, struct control *control)
{
	u32 enclave = enclave_of_core(at);
	void *window = window_of(enclave, READ(control->epoch));
	u32 line = places_of(enclave)->preempt + own_number(at);
	struct line *word = window ? line_at(window, line) : 0;
	return word && READ(word->words[0]) == (1ull << 32 | READ(core->record) >> 32);
}
