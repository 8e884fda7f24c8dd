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

/// Where a register lies: registers with the same number of entries are interleaved, so that what belongs to one entry shares
/// cache lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Memory {
    start: usize,
    stride: usize,
    entries: u32,
    bits: u8,
    is_pair: bool,
}

impl Memory {
    /// The memory of register `id`.
    pub(crate) const fn of(registers: &[Register<'_>], id: RegisterId) -> Memory {
        let register = &registers[id];
        let (mut start, mut stride, mut other) = (0, 0, 0);
        while other < registers.len() {
            let words = registers[other].is_pair as usize + 1;
            if registers[other].entries == register.entries {
                if other < id {
                    start += words;
                }
                stride += words;
            } else if starts_before(registers, registers[other].entries, register.entries) {
                start += words * registers[other].entries as usize;
            }
            other += 1;
        }
        Memory {
            start,
            stride,
            entries: register.entries,
            bits: register.bits,
            is_pair: register.is_pair,
        }
    }
}

/// Whether the registers with `one` entries come before those with `other` entries.
const fn starts_before(registers: &[Register<'_>], one: u32, other: u32) -> bool {
    let mut id = 0;
    while id < registers.len() {
        if registers[id].entries == one {
            return true;
        }
        if registers[id].entries == other {
            return false;
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
        let registers: Vec<Memory> =
            (0..pipeline.registers.len()).map(|id| Memory::of(pipeline.registers, id)).collect();
        let words =
            registers.iter().map(|memory| memory.entries as usize * (memory.is_pair as usize + 1));
        let entries = |table: &Table<'_>| match table.lookup {
            Lookup::None | Lookup::Ternary(_) => Entries::None,
            Lookup::Exact { entries, .. } => {
                Entries::Exact { keys: HashMap::new(), limit: entries }
            }
            Lookup::Direct { entries, .. } => Entries::Direct(vec![None; entries as usize]),
        };
        State {
            words: vec![0; words.sum()],
            registers,
            tables: pipeline.ingress.iter().chain(pipeline.egress).map(entries).collect(),
            ingress: pipeline.ingress.len(),
        }
    }

    /// An entry of a register: the low word, and the high one of a pair. `None` beyond the last entry.
    pub fn read(&self, register: RegisterId, index: u32) -> Option<[u32; 2]> {
        let memory = self.registers.get(register)?;
        let at = memory.place(index)?;
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
        let at = memory.place(index).ok_or(Refused::NoSuchEntry)?;
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
        let first = self.first_table(gress);
        self.tables.get_mut(first + table)
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
    #[inline(always)]
    fn place(&self, index: u32) -> Option<usize> {
        (index < self.entries).then(|| self.start + index as usize * self.stride)
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
        let Some(entry) = self.place(index).and_then(|at| words.get_mut(at..)) else {
            return [0; 4];
        };
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

/// The state with memory of registers that is known at compile time, if the pipeline is a constant.
pub(crate) struct Fixed<'s, const WORD: u8> {
    pub(crate) state: &'s mut State<WORD>,
    pub(crate) registers: &'static [Register<'static>],
}

impl<const WORD: u8> Surroundings for Fixed<'_, WORD> {
    #[inline(always)]
    fn exact(&self, table: usize, key: &Key) -> Option<&Entry> {
        self.state.exact(table, key)
    }

    #[inline(always)]
    fn direct(&self, table: usize, index: u32) -> Option<&Entry> {
        self.state.direct(table, index)
    }

    #[inline(always)]
    fn access<K: Known>(&mut self, access: &Access<'_>, index: u32, inputs: [u32; 2]) -> [u32; 4] {
        let memory = Memory::of(self.registers, access.register);
        memory.access::<K, WORD>(&mut self.state.words, access, index, inputs)
    }
}

impl<const WORD: u8> Surroundings for State<WORD> {
    #[inline(always)]
    fn exact(&self, table: usize, key: &Key) -> Option<&Entry> {
        match self.tables.get(table) {
            Some(Entries::Exact { keys, .. }) => keys.get(key),
            _ => None,
        }
    }

    #[inline(always)]
    fn direct(&self, table: usize, index: u32) -> Option<&Entry> {
        match self.tables.get(table) {
            Some(Entries::Direct(entries)) => entries.get(index as usize)?.as_ref(),
            _ => None,
        }
    }

    #[inline(always)]
    fn access<K: Known>(&mut self, access: &Access<'_>, index: u32, inputs: [u32; 2]) -> [u32; 4] {
        let Some(memory) = self.registers.get(access.register).copied() else { return [0; 4] };
        memory.access::<K, WORD>(&mut self.words, access, index, inputs)
    }
}
