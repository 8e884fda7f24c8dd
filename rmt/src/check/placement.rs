//! Placement: which pipeline stage each table is in, and what the tables of a stage take together.
//!
//! A table lies behind every table whose fields it reads or writes again, unless gateways exclude that one packet applies both.
//! Among the stages that this leaves, it takes the author's, or else the first with room. Ingress and egress share the stages.
//!
//! What a table takes follows the public compiler's estimates (`bf-p4c/mau/resource_estimate.cpp`); where that compiler packs more
//! tightly, ours counts more.

use alloc::vec;
use alloc::vec::Vec;

use super::{Place, Rule, Violation};
use crate::devices::{Device, Limit};
use crate::field::{FIELDS_MAX, Field};
use crate::hash::Hash;
use crate::pipeline::{Gress, Pipeline};
use crate::table::{Lookup, Match, Source, Table, Then};

/// Words of an SRAM block, and bits of a word.
const SRAM_WORDS: u32 = 1024;
const SRAM_BITS: u32 = 128;
/// Words of a TCAM block, and bits of a word.
const TCAM_WORDS: usize = 512;
const TCAM_BITS: usize = 44;
/// Bits that an exact entry has beside key and data: its version and the address of its action.
const OVERHEAD_BITS: u32 = 4 + 6;
/// Ways of an exact table's hash, so that it fills before two keys collide in all of them.
const WAYS: u32 = 4;

/// Units of a stage's resources.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Units {
    /// Logical tables.
    pub tables: u32,
    /// Stateful ALUs.
    pub stateful_alus: u32,
    /// SRAM blocks.
    pub srams: u32,
    /// Map RAM blocks.
    pub map_rams: u32,
    /// TCAM blocks.
    pub tcams: u32,
    /// Gateways.
    pub gateways: u32,
    /// VLIW instructions.
    pub vliw: u32,
    /// Bytes of the crossbar to exact tables, gateways and stateful ALUs.
    pub exact_bytes: u32,
    /// Bytes of the crossbar to ternary tables.
    pub ternary_bytes: u32,
    /// Hashes of 16 bits.
    pub hashes: u32,
}

impl Units {
    /// The units by name, with a device's limit for one stage.
    pub fn named<'d>(&self, device: &'d Device) -> [(&'static str, u32, &'d Limit); 10] {
        [
            ("logical tables", self.tables, &device.tables),
            ("stateful ALUs", self.stateful_alus, &device.stateful_alus),
            ("SRAM blocks", self.srams, &device.srams),
            ("map RAM blocks", self.map_rams, &device.map_rams),
            ("TCAM blocks", self.tcams, &device.tcams),
            ("gateways", self.gateways, &device.gateways),
            ("VLIW instructions", self.vliw, &device.vliw),
            ("exact crossbar bytes", self.exact_bytes, &device.exact_bytes),
            ("ternary crossbar bytes", self.ternary_bytes, &device.ternary_bytes),
            ("hashes", self.hashes, &device.hashes),
        ]
    }

    fn add(&mut self, other: &Units) {
        self.tables += other.tables;
        self.stateful_alus += other.stateful_alus;
        self.srams += other.srams;
        self.map_rams += other.map_rams;
        self.tcams += other.tcams;
        self.gateways += other.gateways;
        self.vliw += other.vliw;
        self.exact_bytes += other.exact_bytes;
        self.ternary_bytes += other.ternary_bytes;
        self.hashes += other.hashes;
    }
}

/// A table in its stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placed {
    /// The gress.
    pub gress: Gress,
    /// Index of the table in its gress.
    pub table: usize,
    /// The pipeline stage, from 0.
    pub stage: usize,
    /// What the table takes there.
    pub units: Units,
}

/// Where a pipeline's tables are.
#[derive(Clone, Debug)]
pub struct Placement<'p> {
    /// The tables, the ingress first.
    pub tables: Vec<Placed>,
    /// What each stage's tables take together. There are as many stages as the tables need, even if the device has fewer.
    pub stages: Vec<Units>,
    /// Violations of placement and budget.
    pub violations: Vec<Violation<'p>>,
}

impl Placement<'_> {
    /// Panics with the first violation, as [`Pipeline::must_fit`] does for the shape.
    ///
    /// # Panics
    /// If there is a violation.
    pub fn must_fit(&self) {
        if let Some(violation) = self.violations.first() {
            panic!("{violation}");
        }
    }

    /// The units of all stages together.
    pub fn total(&self) -> Units {
        let mut total = Units::default();
        self.stages.iter().for_each(|stage| total.add(stage));
        total
    }
}

/// Places the tables of a pipeline whose [shape](Pipeline::check) has no violations.
pub fn place<'p>(pipeline: &'p Pipeline<'p>, device: &Device) -> Placement<'p> {
    let mut placement = Placement { tables: vec![], stages: vec![], violations: vec![] };
    let bits: u32 = pipeline.fields.iter().map(|field| u32::from(field.bits)).sum();
    if bits > device.phv_bits.most {
        let place = Place::new(pipeline.name);
        placement.violations.push(violation(
            Rule::PhvBits,
            place,
            bits,
            device.phv_bits,
            device,
            "",
        ));
    }
    for register in pipeline.registers {
        let (srams, _) = register_blocks(register.entries, register.bits, register.is_pair);
        if srams > device.register_srams.most {
            let place = Place::new(register.name);
            let limit = device.register_srams;
            placement.violations.push(violation(
                Rule::RegisterMemory,
                place,
                srams,
                limit,
                device,
                "",
            ));
        }
    }
    for gress in [Gress::Ingress, Gress::Egress] {
        place_gress(pipeline, gress, device, &mut placement);
    }
    if placement.stages.len() > device.stages.most as usize {
        let stages = placement.stages.len() as u32;
        let place = Place::new(pipeline.name);
        let last = placement.tables.iter().max_by_key(|placed| placed.stage);
        let detail = last.map_or("", |last| pipeline.tables(last.gress)[last.table].name);
        placement.violations.push(violation(
            Rule::Stages,
            place,
            stages,
            device.stages,
            device,
            detail,
        ));
    }
    placement
}

fn place_gress<'p>(
    pipeline: &'p Pipeline<'p>,
    gress: Gress,
    device: &Device,
    placement: &mut Placement<'p>,
) {
    let tables = pipeline.tables(gress);
    let uses: Vec<Uses> = tables.iter().map(Uses::of).collect();
    let mut stages: Vec<usize> = vec![];
    for (index, table) in tables.iter().enumerate() {
        let (mut first, mut because) = (0, "");
        for earlier in 0..index {
            if exclusive(&tables[earlier], table, &uses[earlier]) {
                continue;
            }
            if uses[index].depends_on(&uses[earlier]) && stages[earlier] + 1 > first {
                (first, because) = (stages[earlier] + 1, tables[earlier].name);
            } else if uses[index].overwrites(&uses[earlier]) && stages[earlier] > first {
                (first, because) = (stages[earlier], tables[earlier].name);
            }
        }
        let units = units(pipeline, table);
        let stage = match table.stage {
            Some(stage) => {
                let stage = usize::from(stage);
                if stage < first {
                    let place = Place::new(gress.name()).then(table.name);
                    let limit = Limit { most: first as u32, source: "" };
                    let violation =
                        violation(Rule::Dependency, place, stage as u32, limit, device, because);
                    placement.violations.push(violation);
                }
                report_budget(gress, table, stage, &units, device, placement);
                stage
            }
            None => first_with_room(first, &units, device, &placement.stages),
        };
        if !fits(&Units::default(), &units, device) && table.stage.is_none() {
            report_budget(gress, table, stage, &units, device, placement);
        }
        if placement.stages.len() <= stage {
            placement.stages.resize(stage + 1, Units::default());
        }
        placement.stages[stage].add(&units);
        placement.tables.push(Placed { gress, table: index, stage, units });
        stages.push(stage);
    }
}

/// The first stage with room from `first`; `first` itself for a table that fits no empty stage.
fn first_with_room(first: usize, units: &Units, device: &Device, stages: &[Units]) -> usize {
    if !fits(&Units::default(), units, device) {
        return first;
    }
    let taken = |stage: usize| stages.get(stage).copied().unwrap_or_default();
    (first..).find(|stage| fits(&taken(*stage), units, device)).unwrap_or(first)
}

fn fits(taken: &Units, more: &Units, device: &Device) -> bool {
    let mut sum = *taken;
    sum.add(more);
    sum.named(device).iter().all(|(_, units, limit)| *units <= limit.most)
}

fn report_budget<'p>(
    gress: Gress,
    table: &'p Table<'p>,
    stage: usize,
    units: &Units,
    device: &Device,
    placement: &mut Placement<'p>,
) {
    let mut sum = placement.stages.get(stage).copied().unwrap_or_default();
    sum.add(units);
    for (name, units, limit) in sum.named(device) {
        if units > limit.most {
            let place = Place::new(gress.name()).then(table.name);
            placement.violations.push(violation(
                Rule::StageBudget,
                place,
                units,
                *limit,
                device,
                name,
            ));
        }
    }
}

fn violation<'p>(
    rule: Rule,
    place: Place<'p>,
    found: u32,
    limit: Limit,
    device: &Device,
    detail: &'p str,
) -> Violation<'p> {
    Violation {
        rule,
        place,
        found: found.into(),
        limit: limit.most.into(),
        source: limit.source,
        device: device.name,
        detail,
    }
}

/// Fields that a table reads and writes.
struct Uses {
    reads: [bool; FIELDS_MAX],
    writes: [bool; FIELDS_MAX],
}

impl Uses {
    fn of(table: &Table<'_>) -> Uses {
        let mut uses = Uses { reads: [false; FIELDS_MAX], writes: [false; FIELDS_MAX] };
        let mut read = |field: Field| uses.reads[usize::from(field.index) % FIELDS_MAX] = true;
        table.gateway.rows.iter().flat_map(|row| row.all).for_each(|bits| read(bits.field));
        match table.lookup {
            Lookup::None => (),
            Lookup::Ternary(entries) => {
                entries.iter().flat_map(|entry| entry.all).for_each(|bits| read(bits.field));
            }
            Lookup::Exact { key, .. } => key.iter().copied().for_each(&mut read),
            Lookup::Direct { index, .. } => read(index),
        }
        for action in table.actions {
            if let Some(access) = &action.access {
                read(access.index);
                access.inputs.iter().flatten().copied().for_each(&mut read);
            }
            for op in action.ops {
                for source in [&op.a, &op.b] {
                    match source {
                        Source::Field(field) => read(*field),
                        Source::Hash(hash) => hash.fields.iter().copied().for_each(&mut read),
                        Source::Constant(_) | Source::Data(_) | Source::Output(_) => (),
                    }
                }
            }
        }
        for op in table.actions.iter().flat_map(|action| action.ops) {
            uses.writes[usize::from(op.to.index) % FIELDS_MAX] = true;
        }
        uses
    }

    /// Whether this table reads or writes what an earlier one has written.
    fn depends_on(&self, earlier: &Uses) -> bool {
        (0..FIELDS_MAX)
            .any(|field| earlier.writes[field] && (self.reads[field] || self.writes[field]))
    }

    /// Whether this table writes what an earlier one reads. Both may be in one stage, which reads before it writes.
    fn overwrites(&self, earlier: &Uses) -> bool {
        (0..FIELDS_MAX).any(|field| earlier.reads[field] && self.writes[field])
    }
}

/// Whether gateways exclude that one packet applies both tables: each row of one that lets packets through contradicts each such
/// row of the other, in fields that the earlier table does not write.
fn exclusive(earlier: &Table<'_>, later: &Table<'_>, uses: &Uses) -> bool {
    let (Some(one), Some(other)) = (conditions(earlier), conditions(later)) else { return false };
    one.iter().all(|one| other.iter().all(|other| contradict(one, other, uses)))
}

/// The rows that let a packet through, if every packet that applies the table matches one of them.
fn conditions<'t>(table: &'t Table<'_>) -> Option<Vec<&'t [Match]>> {
    if table.gateway.otherwise != Then::Skip {
        return None;
    }
    let rows = table.gateway.rows.iter().filter(|row| row.then != Then::Skip);
    Some(rows.map(|row| row.all).collect())
}

fn contradict(one: &[Match], other: &[Match], earlier: &Uses) -> bool {
    one.iter().any(|one| {
        other.iter().any(|other| {
            let both = one.mask & other.mask;
            one.field == other.field
                && one.value & both != other.value & both
                && !earlier.writes[usize::from(one.field.index) % FIELDS_MAX]
        })
    })
}

/// SRAM and map RAM blocks of a register: its words, and a spare block.
fn register_blocks(entries: u32, bits: u8, is_pair: bool) -> (u32, u32) {
    let bits = u32::from(bits) * if is_pair { 2 } else { 1 };
    let bits = u64::from(entries) * u64::from(bits.max(1));
    let blocks =
        u32::try_from(bits.div_ceil((SRAM_BITS * SRAM_WORDS).into())).unwrap_or(u32::MAX - 1) + 1;
    (blocks, blocks)
}

/// What a table takes in its stage.
fn units(pipeline: &Pipeline<'_>, table: &Table<'_>) -> Units {
    let mut units = Units { tables: 1, vliw: table.actions.len() as u32, ..Units::default() };
    if !table.gateway.rows.is_empty() {
        units.gateways = 1;
        units.exact_bytes +=
            bytes(table.gateway.rows.iter().flat_map(|row| row.all).map(|bits| bits.field));
    }
    match table.lookup {
        Lookup::None => (),
        Lookup::Ternary(entries) => {
            let fields = || entries.iter().flat_map(|entry| entry.all).map(|bits| bits.field);
            let width = bits(fields()).div_ceil(TCAM_BITS).max(1);
            units.tcams = (width * entries.len().div_ceil(TCAM_WORDS)) as u32;
            units.ternary_bytes = bytes(fields());
        }
        Lookup::Exact { key, entries, data_bits, .. } => {
            let width = bits(key.iter().copied()) as u32 + OVERHEAD_BITS + u32::from(data_bits);
            units.srams = if width <= SRAM_BITS {
                let in_word = SRAM_BITS / width;
                entries.div_ceil(in_word * SRAM_WORDS).max(WAYS)
            } else {
                width.div_ceil(SRAM_BITS) * entries.div_ceil(SRAM_WORDS).max(WAYS)
            };
            units.exact_bytes += bytes(key.iter().copied());
        }
        Lookup::Direct { index, entries, data_bits } => {
            let in_word = (SRAM_BITS / u32::from(data_bits).max(8)).max(1);
            let width = u32::from(data_bits).div_ceil(SRAM_BITS).max(1);
            units.srams = width * entries.div_ceil(in_word * SRAM_WORDS);
            units.exact_bytes += bytes([index].into_iter());
        }
    }
    let mut registers: Vec<usize> = vec![];
    let mut inputs: Vec<Field> = vec![];
    for access in table.actions.iter().filter_map(|action| action.access.as_ref()) {
        inputs.extend(access.inputs.iter().flatten());
        if !registers.contains(&access.register)
            && let Some(register) = pipeline.registers.get(access.register)
        {
            registers.push(access.register);
            let (srams, map_rams) =
                register_blocks(register.entries, register.bits, register.is_pair);
            units.stateful_alus += 1;
            units.srams += srams;
            units.map_rams += map_rams;
            // The index reaches the memory as a hash of its bits.
            units.hashes += 1;
            units.exact_bytes += bytes([access.index].into_iter());
        }
    }
    units.exact_bytes += bytes(inputs.into_iter());
    // Actions share a hash of the same fields.
    let mut hashes: Vec<Hash<'_>> = vec![];
    for op in table.actions.iter().flat_map(|action| action.ops) {
        for source in [op.a, op.b] {
            if let Source::Hash(hash) = source
                && !hashes.contains(&hash)
            {
                units.hashes += u32::from(hash.bits).div_ceil(16);
                units.exact_bytes += bytes(hash.fields.iter().copied());
                hashes.push(hash);
            }
        }
    }
    units
}

/// Bytes of different fields.
fn bytes(fields: impl Iterator<Item = Field>) -> u32 {
    different(fields).iter().map(|field| u32::from(field.bits.div_ceil(8))).sum()
}

/// Bits of different fields.
fn bits(fields: impl Iterator<Item = Field>) -> usize {
    different(fields).iter().map(|field| usize::from(field.bits)).sum()
}

fn different(fields: impl Iterator<Item = Field>) -> Vec<Field> {
    let mut different: Vec<Field> = vec![];
    for field in fields {
        if !different.contains(&field) {
            different.push(field);
        }
    }
    different
}
