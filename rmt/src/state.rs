//! What a pipeline remembers between packets: registers, and the entries that the control plane writes.

use alloc::vec;
use alloc::vec::Vec;
use core::fmt;

use hashbrown::HashMap;

use crate::field::word_bits;
use crate::pipeline::{Gress, Pipeline};
use crate::register::{Known, Register, RegisterId};
use crate::table::{Access, Entry, Key, Lookup, Surroundings, Table};

/// Registers and entries of one loaded pipeline. Words of 32 bits are `WORD` bits wide.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct State<const WORD: u8 = 32> {
    words: Vec<u32>,
    registers: Vec<Memory>,
    tables: Vec<Entries>,
    /// Number of tables of the ingress, which come first.
    ingress: usize,
}

/// Where a register lies: registers with the same number of entries are interleaved in the order of access, so that what belongs to
/// one entry shares cache lines; those that no table accesses lie apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Memory {
    /// Where the register's group starts, in words.
    group: usize,
    /// The register's place within an entry of the group.
    offset: usize,
    /// Words of an entry of the group.
    stride: usize,
    entries: u32,
    bits: u8,
    is_pair: bool,
}

/// Registers whose order of access is known; the others count as accessed last.
const ORDERED_MAX: usize = 128;

/// When a packet accesses each register: the number of the first table that does, or [`NEVER`].
pub(crate) type Order = [u16; ORDERED_MAX];

const NEVER: u16 = u16::MAX;
const LAST: u16 = NEVER - 1;

/// The order in which a pipeline's tables access its registers.
pub(crate) const fn order(pipeline: &Pipeline<'_>) -> Order {
    let mut order = [NEVER; ORDERED_MAX];
    let count = pipeline.ingress.len() + pipeline.egress.len();
    let mut table = 0;
    while table < count {
        let actions = match table.checked_sub(pipeline.ingress.len()) {
            Some(table) => pipeline.egress[table].actions,
            None => pipeline.ingress[table].actions,
        };
        let mut action = 0;
        while action < actions.len() {
            if let Some(access) = &actions[action].access
                && access.register < ORDERED_MAX
                && order[access.register] == NEVER
            {
                order[access.register] = if table < LAST as usize { table as u16 } else { LAST };
            }
            action += 1;
        }
        table += 1;
    }
    order
}

const fn place_in(order: &Order, id: RegisterId) -> u16 {
    if id < ORDERED_MAX { order[id] } else { LAST }
}

/// The group of a register: its number of entries, and whether tables access it.
const fn group(registers: &[Register<'_>], order: &Order, id: RegisterId) -> (u32, bool) {
    (registers[id].entries, place_in(order, id) != NEVER)
}

const fn is_same(one: (u32, bool), other: (u32, bool)) -> bool {
    one.0 == other.0 && one.1 == other.1
}

impl Memory {
    /// The memory of register `id`, of a pipeline whose tables access registers in this order.
    pub(crate) const fn of(registers: &[Register<'_>], order: &Order, id: RegisterId) -> Memory {
        let register = &registers[id];
        let own = group(registers, order, id);
        let (mut start, mut offset, mut stride, mut other) = (0, 0, 0, 0);
        while other < registers.len() {
            let words = registers[other].is_pair as usize + 1;
            let group = group(registers, order, other);
            if is_same(group, own) {
                let (before, at) = (place_in(order, other), place_in(order, id));
                if before < at || before == at && other < id {
                    offset += words;
                }
                stride += words;
            } else if starts_before(registers, order, group, own) {
                start += words * registers[other].entries as usize;
            }
            other += 1;
        }
        Memory {
            group: start,
            offset,
            stride,
            entries: register.entries,
            bits: register.bits,
            is_pair: register.is_pair,
        }
    }

    /// Whether the register has an entry.
    #[inline(always)]
    pub(crate) const fn has(&self, index: u32) -> bool {
        index < self.entries
    }

    /// Whether another register's entries lie beside this one's.
    pub(crate) const fn is_beside(&self, other: &Memory) -> bool {
        self.group == other.group
    }
}

/// Number of words of all registers.
pub(crate) const fn words(registers: &[Register<'_>]) -> usize {
    let (mut words, mut id) = (0, 0);
    while id < registers.len() {
        words += registers[id].entries as usize * (registers[id].is_pair as usize + 1);
        id += 1;
    }
    words
}

/// Whether the registers of group `one` come before those of group `other`.
const fn starts_before(
    registers: &[Register<'_>],
    order: &Order,
    one: (u32, bool),
    other: (u32, bool),
) -> bool {
    let mut id = 0;
    while id < registers.len() {
        let group = group(registers, order, id);
        if is_same(group, one) || is_same(group, other) {
            return is_same(group, one);
        }
        id += 1;
    }
    false
}

/// Entries of a table that the control plane writes.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Entries {
    None,
    Exact { keys: HashMap<Key, Entry>, limit: u32 },
    Direct(Vec<Option<Entry>>),
}

impl Entries {
    #[inline(always)]
    fn exact(&self, key: &Key) -> Option<&Entry> {
        match self {
            Entries::Exact { keys, .. } => keys.get(key),
            _ => None,
        }
    }

    #[inline(always)]
    fn direct(&self, index: u32) -> Option<&Entry> {
        match self {
            Entries::Direct(entries) => entries.get(index as usize)?.as_ref(),
            _ => None,
        }
    }
}

/// Why the control plane's write is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// The gress has no such table, or the table has no entries of this kind.
    NoSuchTable,
    /// The table has all the entries that it was declared with.
    Full,
    /// There is no entry at this index.
    NoSuchEntry,
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Refused::NoSuchTable => "the pipeline has no table of that kind there",
            Refused::Full => "the table is full",
            Refused::NoSuchEntry => "the index is beyond the declared entries",
        })
    }
}

impl core::error::Error for Refused {}

impl<const WORD: u8> State<WORD> {
    /// The state of a pipeline that was just loaded: all registers 0, all tables empty.
    pub fn new(pipeline: &Pipeline<'_>) -> State<WORD> {
        let order = order(pipeline);
        let memory = |id| Memory::of(pipeline.registers, &order, id);
        let registers: Vec<Memory> = (0..pipeline.registers.len()).map(memory).collect();
        let entries = |table: &Table<'_>| match table.lookup {
            Lookup::None | Lookup::Ternary(_) => Entries::None,
            Lookup::Exact { entries, .. } => {
                Entries::Exact { keys: HashMap::new(), limit: entries }
            }
            Lookup::Direct { entries, .. } => Entries::Direct(vec![None; entries as usize]),
        };
        State {
            words: vec![0; words(pipeline.registers)],
            registers,
            tables: pipeline.ingress.iter().chain(pipeline.egress).map(entries).collect(),
            ingress: pipeline.ingress.len(),
        }
    }

    /// An entry of a register: the low word, and the high one of a pair. `None` beyond the last entry.
    pub fn read(&self, register: RegisterId, index: u32) -> Option<[u32; 2]> {
        let memory = self.registers.get(register)?;
        let at = memory.place(index)? + memory.offset;
        let high = if memory.is_pair { self.words[at + 1] } else { 0 };
        Some([self.words[at], high])
    }

    /// Writes an entry of a register, as a control plane does between two packets.
    ///
    /// # Errors
    /// There is no such entry.
    pub fn write(
        &mut self,
        register: RegisterId,
        index: u32,
        value: [u32; 2],
    ) -> Result<(), Refused> {
        let memory = *self.registers.get(register).ok_or(Refused::NoSuchEntry)?;
        let at = memory.place(index).ok_or(Refused::NoSuchEntry)? + memory.offset;
        let mask = crate::field::word_mask::<WORD>(memory.bits);
        self.words[at] = value[0] & mask;
        if memory.is_pair {
            self.words[at + 1] = value[1] & mask;
        }
        Ok(())
    }

    /// Writes an entry of an exact table, in place of an earlier one with the same key.
    ///
    /// # Errors
    /// There is no such table, or it is full.
    pub fn insert(
        &mut self,
        gress: Gress,
        table: usize,
        key: Key,
        entry: Entry,
    ) -> Result<(), Refused> {
        match self.entries(gress, table) {
            Some(Entries::Exact { keys, limit }) => {
                if keys.len() >= *limit as usize && !keys.contains_key(&key) {
                    return Err(Refused::Full);
                }
                keys.insert(key, entry);
                Ok(())
            }
            _ => Err(Refused::NoSuchTable),
        }
    }

    /// Removes an entry of an exact table. Returns whether there was one.
    pub fn remove(&mut self, gress: Gress, table: usize, key: &Key) -> bool {
        match self.entries(gress, table) {
            Some(Entries::Exact { keys, .. }) => keys.remove(key).is_some(),
            _ => false,
        }
    }

    /// Writes an entry of a direct table; `None` clears it.
    ///
    /// # Errors
    /// There is no such table, or no such entry.
    pub fn set(
        &mut self,
        gress: Gress,
        table: usize,
        index: u32,
        entry: Option<Entry>,
    ) -> Result<(), Refused> {
        match self.entries(gress, table) {
            Some(Entries::Direct(entries)) => {
                *entries.get_mut(index as usize).ok_or(Refused::NoSuchEntry)? = entry;
                Ok(())
            }
            _ => Err(Refused::NoSuchTable),
        }
    }

    fn entries(&mut self, gress: Gress, table: usize) -> Option<&mut Entries> {
        let (ingress, egress) = self.tables.split_at_mut(self.ingress);
        match gress {
            Gress::Ingress => ingress.get_mut(table),
            Gress::Egress => egress.get_mut(table),
        }
    }

    /// The number of a gress's first table.
    pub(crate) fn first_table(&self, gress: Gress) -> usize {
        match gress {
            Gress::Ingress => 0,
            Gress::Egress => self.ingress,
        }
    }
}

impl Memory {
    /// Where an entry of the group starts. It is the same for all registers of a group, so that the compiler checks it once.
    #[inline(always)]
    fn place(&self, index: u32) -> Option<usize> {
        if self.has(index) { Some(self.group + index as usize * self.stride) } else { None }
    }

    /// The register's words of an entry.
    #[inline(always)]
    fn entry<'w>(&self, words: &'w mut [u32], index: u32) -> Option<&'w mut [u32]> {
        let place = self.place(index)?;
        words.get_mut(place..place + self.stride)?.get_mut(self.offset..)
    }

    #[inline(always)]
    pub(crate) fn access<K: Known, const WORD: u8>(
        &self,
        words: &mut [u32],
        access: &Access<'_>,
        index: u32,
        inputs: [u32; 2],
    ) -> [u32; 4] {
        let bits = word_bits::<WORD>(self.bits);
        let Some(entry) = self.entry(words, index) else { return [0; 4] };
        if self.is_pair {
            let Some(words) = entry.first_chunk_mut::<2>() else { return [0; 4] };
            access.instruction.run::<K>(words, inputs, bits, true)
        } else {
            let Some(word) = entry.first_mut() else { return [0; 4] };
            let mut words = [*word, 0];
            let outputs = access.instruction.run::<K>(&mut words, inputs, bits, false);
            *word = words[0];
            outputs
        }
    }
}

/// The state of a pipeline that is a constant: the actions themselves know where registers lie.
pub(crate) struct Fixed<'s, const WORD: u8> {
    words: &'s mut [u32],
    tables: &'s [Entries],
}

impl<'s, const WORD: u8> Fixed<'s, WORD> {
    /// `words` is the number of words of all registers; the compiler then knows how many there are.
    #[inline(always)]
    pub(crate) fn new(state: &'s mut State<WORD>, words: usize) -> Option<Fixed<'s, WORD>> {
        match state.words.get_mut(..words) {
            Some(words) => Some(Fixed { words, tables: &state.tables }),
            None => None,
        }
    }
}

impl<const WORD: u8> Surroundings for Fixed<'_, WORD> {
    #[inline(always)]
    fn exact(&self, table: usize, key: &Key) -> Option<&Entry> {
        self.tables.get(table)?.exact(key)
    }

    #[inline(always)]
    fn direct(&self, table: usize, index: u32) -> Option<&Entry> {
        self.tables.get(table)?.direct(index)
    }

    #[inline(always)]
    fn access<K: Known>(&mut self, access: &Access<'_>, index: u32, inputs: [u32; 2]) -> [u32; 4] {
        match const { K::MEMORY } {
            Some(memory) => memory.access::<K, WORD>(self.words, access, index, inputs),
            None => [0; 4],
        }
    }
}

impl<const WORD: u8> Surroundings for State<WORD> {
    #[inline(always)]
    fn exact(&self, table: usize, key: &Key) -> Option<&Entry> {
        self.tables.get(table)?.exact(key)
    }

    #[inline(always)]
    fn direct(&self, table: usize, index: u32) -> Option<&Entry> {
        self.tables.get(table)?.direct(index)
    }

    #[inline(always)]
    fn access<K: Known>(&mut self, access: &Access<'_>, index: u32, inputs: [u32; 2]) -> [u32; 4] {
        let Some(memory) = self.registers.get(access.register).copied() else { return [0; 4] };
        memory.access::<K, WORD>(&mut self.words, access, index, inputs)
    }
}
