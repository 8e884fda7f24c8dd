// SPDX-License-Identifier: GPL-2.0
/* Reads another process's mappings, and the accessed bits in its page tables. Changes nothing.
 *
 * A page table is read without a lock (`walk`) or under the lock on the mappings (`walk_locked`). `walk` may read a
 * table that has been freed and reused. So it reads the path to the table again afterwards: pages that are no longer
 * mapped by the same tables count as not present. */
#include "kernel.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>
#include <bpf/bpf_core_read.h>

#include "shared/pages.h"

#define UNIT_BATCHES (BATCHES / UNITS)
#define BATCH_PAGES 64
#define PAGE_BYTES 4096
#define TABLE_BYTES 4096
/* Number of addresses tried to find where the kernel maps all memory: 1 GiB apart, within 128 TiB. */
#define TRIES (1 << 17)
/* Most steps of a call that looks for page tables, each of which may pass over a hole. */
#define STEPS (1 << 20)
#define GIB (1ull << 30)

/* x86: bits of page table entries. PROTNONE pages are present, but trap; SPECIAL pages, such as the zero page,
 * belong to no process. */
#define PRESENT 0x1ull
#define ACCESSED 0x20ull
#define HUGE 0x80ull
#define PROTNONE 0x100ull
#define SPECIAL 0x200ull

struct mm_context {
	u64 ctx_id;
} WAVE_CO_RE;

struct mm_struct {
	void *pgd;
	struct mm_context context;
} WAVE_CO_RE;

struct task_struct {
	struct mm_struct *mm;
} WAVE_CO_RE;

struct file {
	void *f_inode;
} WAVE_CO_RE;

struct vm_area_struct {
	unsigned long vm_start;
	unsigned long vm_end;
	struct mm_struct *vm_mm;
	unsigned long vm_flags;
	void *vm_ops;
	unsigned long vm_pgoff;
	struct file *vm_file;
} WAVE_CO_RE;

struct seq_file;

struct bpf_iter_meta {
	struct seq_file *seq;
} WAVE_CO_RE;

struct bpf_iter__task_vma {
	struct bpf_iter_meta *meta;
	struct task_struct *task;
	struct vm_area_struct *vma;
} WAVE_CO_RE;

extern struct task_struct *bpf_task_from_pid(s32 pid) __ksym __weak;
extern struct task_struct *bpf_task_from_vpid(s32 pid) __ksym __weak;
extern void bpf_task_release(struct task_struct *task) __ksym __weak;

struct exchange exchange = {};

/* An identifier of an address space, unique until the machine reboots. */
static __always_inline u64 space_of(struct mm_struct *mm)
{
	if (bpf_core_field_exists(mm->context.ctx_id))
		return BPF_CORE_READ(mm, context.ctx_id);
	return (u64)mm;
}

static __always_inline u64 entry(u64 table, u64 address, u32 shift)
{
	u64 value = 0;

	bpf_probe_read_kernel(&value, sizeof(value), (void *)(table + ((address >> shift) % TABLE_ENTRIES) * 8));
	return value;
}

/* The table that an entry points to; 0 if it points to none. */
static __always_inline u64 below(u64 value)
{
	return (value & (PRESENT | HUGE)) == PRESENT ? exchange.direct_map + (value & exchange.frames) : 0;
}

/* The entries of a strip's units; zeros where there are none. */
static __noinline void units_of(u64 table, u64 address, u64 *units)
{
#pragma clang loop unroll(disable)
	for (u32 unit = 0; unit < UNITS; unit++)
		units[unit] = 0;
	if (exchange.levels == 5)
		table = below(entry(table, address, 48));
	if (table)
		table = below(entry(table, address, 39));
	if (table)
		table = below(entry(table, address, 30));
	if (table)
		bpf_probe_read_kernel(units, UNITS * sizeof(u64),
				      (void *)(table + ((address >> 21) % TABLE_ENTRIES) * 8));
}

static __always_inline bool is_page(u64 value)
{
	return (value & (PRESENT | PROTNONE)) && !(value & SPECIAL);
}

/* Non-static functions are verified once, rather than for each call, so each checks its own bounds. */

/* Reads each entry by itself, for a batch with an unusual entry. */
__noinline int read_batch_slowly(u32 at, u32 batch)
{
	struct strip *strip = &exchange.strips[at % STRIPS_MAX];
	u64 young = 0, present = 0;
	u32 first = (batch % UNIT_BATCHES) * BATCH_PAGES;

#pragma clang loop unroll(disable)
	for (u32 page = 0; page < BATCH_PAGES; page++) {
		u64 value = exchange.table[(first + page) % TABLE_ENTRIES];

		if (!is_page(value))
			continue;
		present |= 1ull << page;
		young |= ((value / ACCESSED) & 1) << page;
	}
	batch %= BATCHES;
	strip->young[batch] = young;
	strip->present[batch] = present;
	return 0;
}

/* Reads four entries at a time: bits 0 to 3 hold their PRESENT bits, bits 5 to 8 their ACCESSED bits. */
__noinline int read_batch(u32 at, u32 batch)
{
	struct strip *strip = &exchange.strips[at % STRIPS_MAX];
	u64 *table = &exchange.table[(batch % UNIT_BATCHES) * BATCH_PAGES];
	u64 young = 0, present = 0, any = 0;

#pragma clang loop unroll(full)
	for (u32 page = 0; page < BATCH_PAGES; page += 4) {
		u64 a = table[page], b = table[page + 1], c = table[page + 2], d = table[page + 3];
		u64 four = (a & (PRESENT | ACCESSED)) | (b & (PRESENT | ACCESSED)) << 1 |
			   (c & (PRESENT | ACCESSED)) << 2 | (d & (PRESENT | ACCESSED)) << 3;

		any |= a | b | c | d;
		present |= (four & 15) << page;
		young |= (four >> 5 & 15) << page;
	}
	if (any & (PROTNONE | SPECIAL))
		return read_batch_slowly(at, batch);
	batch %= BATCHES;
	strip->young[batch] = young & present;
	strip->present[batch] = present;
	return 0;
}

static __always_inline void set_unit(struct strip *strip, u32 unit, u64 young, u64 present)
{
#pragma clang loop unroll(disable)
	for (u32 batch = 0; batch < UNIT_BATCHES; batch++) {
		strip->young[unit * UNIT_BATCHES + batch] = young;
		strip->present[unit * UNIT_BATCHES + batch] = present;
	}
}

__noinline int read_unit(u32 at, u32 unit)
{
	struct strip *strip = &exchange.strips[at % STRIPS_MAX];
	u64 value, table;

	unit %= UNITS;
	value = exchange.units[unit];
	table = below(value);
	if (!table) {
		bool huge = (value & HUGE) && is_page(value);

		set_unit(strip, unit, huge && (value & ACCESSED) ? ~0ull : 0, huge ? ~0ull : 0);
		strip->huge |= (u64)huge << unit;
		return 0;
	}
	bpf_probe_read_kernel(exchange.table, TABLE_BYTES, (void *)table);
#pragma clang loop unroll(disable)
	for (u32 batch = 0; batch < UNIT_BATCHES; batch++)
		read_batch(at, unit * UNIT_BATCHES + batch);
	return 0;
}

__noinline int forget_unit(u32 at, u32 unit)
{
	struct strip *strip = &exchange.strips[at % STRIPS_MAX];

	unit %= UNITS;
	set_unit(strip, unit, 0, 0);
	strip->huge &= ~(1ull << unit);
	return 0;
}

static long read_strip(u64 at, u64 *top)
{
	u64 address;

	at %= STRIPS_MAX;
	address = exchange.addresses[at];
	exchange.strips[at].huge = 0;
	units_of(*top, address, exchange.units);
#pragma clang loop unroll(disable)
	for (u32 unit = 0; unit < UNITS; unit++)
		read_unit(at, unit);
	units_of(*top, address, exchange.after);
#pragma clang loop unroll(disable)
	for (u32 unit = 0; unit < UNITS; unit++)
		if ((exchange.units[unit] ^ exchange.after[unit]) & (exchange.frames | PRESENT | HUGE))
			forget_unit(at, unit);
	return 0;
}

/* The address after the entry that covers `address` in a table of this level. */
static __always_inline u64 after(u64 address, u32 shift)
{
	return ((address >> shift) + 1) << shift;
}

/* Strips of the GiB mapped by exchange.table, a bit for each that has anything mapped. */
__noinline int look_at_table(u32 at)
{
	u64 strips = 0;

#pragma clang loop unroll(disable)
	for (u32 strip = 0; strip < TABLE_ENTRIES / UNITS; strip++) {
		u64 *units = &exchange.table[strip * UNITS], any = 0;

#pragma clang loop unroll(full)
		for (u32 unit = 0; unit < UNITS; unit++)
			any |= units[unit];
		strips |= (u64)(any != 0) << strip;
	}
	exchange.tables[at % STRIPS_MAX] = strips;
	return 0;
}

/* Looks at the next GiB of the range, or passes over a larger hole. */
static long look_for_tables(u64 step, u64 *top)
{
	u64 address = exchange.start, table = *top;
	u32 at = exchange.count;

	if (address >= exchange.end || at >= STRIPS_MAX)
		return 1;
	if (exchange.levels == 5) {
		table = below(entry(table, address, 48));
		if (!table) {
			exchange.start = after(address, 48);
			return 0;
		}
	}
	table = below(entry(table, address, 39));
	if (!table) {
		exchange.start = after(address, 39);
		return 0;
	}
	table = below(entry(table, address, 30));
	exchange.start = after(address, 30);
	if (!table)
		return 0;
	bpf_probe_read_kernel(exchange.table, TABLE_BYTES, (void *)table);
	look_at_table(at);
	exchange.addresses[at % STRIPS_MAX] = address & ~(GIB - 1);
	exchange.count = at + 1;
	return 0;
}

static __always_inline void read_strips(struct mm_struct *mm)
{
	u64 top = (u64)BPF_CORE_READ(mm, pgd);

	if (exchange.wanted == TABLES)
		bpf_loop(STEPS, look_for_tables, &top, 0);
	else
		bpf_loop(exchange.count, read_strip, &top, 0);
}

SEC("syscall")
int walk(void *context)
{
	struct task_struct *task;
	struct mm_struct *mm;

	exchange.state = CHANGED;
	/* By the id in the caller's namespace, if the kernel has the function. */
	task = bpf_ksym_exists(bpf_task_from_vpid) ? bpf_task_from_vpid(exchange.pid) : bpf_task_from_pid(exchange.pid);
	if (!task)
		return 0;
	mm = BPF_CORE_READ(task, mm);
	if (mm && space_of(mm) == exchange.space) {
		read_strips(mm);
		if (BPF_CORE_READ(task, mm) == mm && space_of(mm) == exchange.space)
			exchange.state = DONE;
	}
	bpf_task_release(task);
	return 0;
}

/* Does the same at the first of a process's mappings, while the mappings are locked. */
SEC("iter/task_vma")
int walk_locked(struct bpf_iter__task_vma *context)
{
	struct vm_area_struct *vma = context->vma;
	u64 end = 0;

	if (!vma || exchange.state == DONE)
		return 0;
	exchange.state = CHANGED;
	if (space_of(vma->vm_mm) == exchange.space) {
		read_strips(vma->vm_mm);
		exchange.state = DONE;
	}
	/* Fills the reader's buffer, so that the kernel stops iterating. */
	bpf_seq_write(context->meta->seq, &end, sizeof(end));
	return 0;
}

SEC("iter/task_vma")
int areas(struct bpf_iter__task_vma *context)
{
	struct vm_area_struct *vma = context->vma;
	struct area area = {};

	if (!vma)
		return 0;
	area.start = vma->vm_start;
	area.end = vma->vm_end;
	area.flags = vma->vm_flags;
	area.space = space_of(vma->vm_mm);
	area.has_file = vma->vm_file != 0;
	area.file = (u64)BPF_CORE_READ(vma, vm_file, f_inode);
	area.offset = (u64)vma->vm_pgoff * PAGE_BYTES;
	area.has_operations = vma->vm_ops != 0;
	bpf_seq_write(context->meta->seq, &area, sizeof(area));
	return 0;
}

static long try_place(u64 at, u64 *highest)
{
	u64 place = *highest - (at << 30), found[MARK_WORDS] = {};

	if (bpf_probe_read_kernel(found, sizeof(found), (void *)(place + exchange.marked)))
		return 0;
#pragma clang loop unroll(disable)
	for (u32 word = 0; word < MARK_WORDS; word++)
		if (found[word] != ~exchange.mark[word])
			return 0;
	exchange.direct_map = place;
	exchange.state = DONE;
	return 1;
}

/* Finds where the kernel maps all memory, by looking for the caller's page with a known frame. The search starts at the
 * caller's own page table, which is in that mapping, so it is not far. */
SEC("syscall")
int find_direct_map(void *context)
{
	struct task_struct *task = bpf_get_current_task_btf();
	u64 highest = (u64)BPF_CORE_READ(task, mm, pgd) & ~((1ull << 30) - 1);

	exchange.state = NOT_RUN;
	bpf_loop(TRIES, try_place, &highest, 0);
	return 0;
}

char LICENSE[] SEC("license") = "GPL";
