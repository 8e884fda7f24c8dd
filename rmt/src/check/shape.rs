//! Shape: what each register, table, action and parser state may be for itself. All of it runs at compile time.

use super::{Place, Rule, Violation, Violations};
use crate::devices::{Device, Limit};
use crate::field::{FIELDS_MAX, Field, mask};
use crate::parser::{Next, ParserState};
use crate::pipeline::{Gress, Pipeline};
use crate::register::{
    Alu, Compare, Input, Instruction, Operand, Operation, Origin, Register, When, Word,
};
use crate::table::{
    Access, Action, DATA_WORDS_MAX, Function, KEY_FIELDS_MAX, Lookup, Match, Op, Source, Table,
    Then,
};

/// A check under way.
struct Check<'c, 'p> {
    pipeline: &'p Pipeline<'p>,
    device: &'c Device,
    found: &'c mut Violations<'p>,
}

/// A limit that follows from this crate or from the pipeline.
const fn own(most: u32) -> Limit {
    Limit { most, source: "" }
}

pub(super) const fn check<'p>(
    pipeline: &'p Pipeline<'p>,
    device: &Device,
    found: &mut Violations<'p>,
) {
    let mut check = Check { pipeline, device, found };
    check.fields();
    check.registers();
    check.parser();
    check.tables(Gress::Ingress);
    check.tables(Gress::Egress);
    check.mirrors();
    check.intrinsic();
}

impl<'p> Check<'_, 'p> {
    const fn report(&mut self, rule: Rule, place: Place<'p>, found: i64, limit: Limit) {
        self.report_detail(rule, place, found, limit, "");
    }

    const fn report_detail(
        &mut self,
        rule: Rule,
        place: Place<'p>,
        found: i64,
        limit: Limit,
        detail: &'p str,
    ) {
        let limit_source = limit.source;
        self.found.report(Violation {
            rule,
            place,
            found,
            limit: limit.most as i64,
            source: limit_source,
            device: self.device.name,
            detail,
        });
    }

    /// Reports more than a limit allows.
    const fn most(&mut self, rule: Rule, place: Place<'p>, found: usize, limit: Limit) {
        if found > limit.most as usize {
            self.report(rule, place, found as i64, limit);
        }
    }

    const fn fields(&mut self) {
        let fields = self.pipeline.fields;
        self.most(
            Rule::FieldDeclared,
            Place::new(self.pipeline.name),
            fields.len(),
            own(FIELDS_MAX as u32),
        );
        let mut index = 0;
        while index < fields.len() {
            let place = Place::new(fields[index].name);
            let bits = fields[index].bits as usize;
            if bits == 0 {
                self.report(Rule::FieldBits, place, 0, self.device.field_bits);
            }
            self.most(Rule::FieldBits, place, bits, self.device.field_bits);
            let mut other = 0;
            while other < index {
                if same(fields[other].name, fields[index].name) {
                    self.report_detail(Rule::Names, place, 2, own(1), fields[index].name);
                }
                other += 1;
            }
            index += 1;
        }
    }

    const fn field(&mut self, place: Place<'p>, field: Field) {
        let fields = self.pipeline.fields;
        let index = field.index as usize;
        if index >= fields.len() {
            self.report(Rule::FieldDeclared, place, index as i64, own(fields.len() as u32));
        } else if fields[index].bits != field.bits {
            self.report_detail(
                Rule::FieldWidth,
                place,
                field.bits as i64,
                own(fields[index].bits as u32),
                fields[index].name,
            );
        }
    }

    /// A field's name; empty if the list has no such field.
    const fn name_of(&self, field: Field) -> &'p str {
        let fields = self.pipeline.fields;
        if (field.index as usize) < fields.len() { fields[field.index as usize].name } else { "" }
    }

    const fn registers(&mut self) {
        let registers = self.pipeline.registers;
        let mut id = 0;
        while id < registers.len() {
            let register = &registers[id];
            let place = Place::new(register.name);
            if !matches!(register.bits, 8 | 16 | 32) {
                self.report(Rule::WordBits, place, register.bits as i64, own(32));
            }
            if register.entries == 0 {
                self.report(Rule::Entries, place, 0, own(1));
            }
            let mut other = 0;
            while other < id {
                if same(registers[other].name, register.name) {
                    self.report_detail(Rule::Names, place, 2, own(1), register.name);
                }
                other += 1;
            }
            self.uses(id);
            id += 1;
        }
    }

    /// The tables and instructions of a register.
    const fn uses(&mut self, id: usize) {
        let register = &self.pipeline.registers[id];
        let place = Place::new(register.name);
        let mut tables = 0;
        let mut last = "";
        let mut instructions: [Option<&'p Instruction<'p>>; 16] = [None; 16];
        let mut count = 0;
        let mut gress = 0;
        while gress < 2 {
            let list =
                self.pipeline.tables(if gress == 0 { Gress::Ingress } else { Gress::Egress });
            let mut table = 0;
            while table < list.len() {
                let actions = list[table].actions;
                let mut uses = false;
                let mut action = 0;
                while action < actions.len() {
                    if let Some(access) = &actions[action].access
                        && access.register == id
                    {
                        uses = true;
                        if self.is_new(place, &instructions, access.instruction) {
                            if count < instructions.len() {
                                instructions[count] = Some(access.instruction);
                            }
                            count += 1;
                        }
                    }
                    action += 1;
                }
                if uses {
                    tables += 1;
                    last = list[table].name;
                    if gress == 0 && self.pipeline.is_ingress_stateless {
                        self.report_detail(Rule::IngressStateless, place, 1, own(0), last);
                    }
                }
                table += 1;
            }
            gress += 1;
        }
        if tables > 1 {
            self.report_detail(Rule::OneTable, place, tables, own(1), last);
        }
        if count > self.device.instructions.most as usize {
            let kept = if count < instructions.len() { count } else { instructions.len() };
            let name = match instructions[kept - 1] {
                Some(instruction) => instruction.name,
                None => "",
            };
            self.report_detail(
                Rule::Instructions,
                place,
                count as i64,
                self.device.instructions,
                name,
            );
        }
        self.large_constants(register, &instructions);
        let mut at = 0;
        while at < instructions.len() {
            if let Some(instruction) = instructions[at] {
                self.instruction(register, instruction);
            }
            at += 1;
        }
    }

    /// Whether an instruction is none of those. Two with one name are one.
    const fn is_new(
        &mut self,
        place: Place<'p>,
        known: &[Option<&'p Instruction<'p>>; 16],
        instruction: &'p Instruction<'p>,
    ) -> bool {
        let mut at = 0;
        while at < known.len() {
            if let Some(known) = known[at]
                && same(known.name, instruction.name)
            {
                if known.does_the_same(instruction) {
                    return false;
                }
                self.report_detail(
                    Rule::Names,
                    place.then(instruction.name),
                    2,
                    own(1),
                    instruction.name,
                );
            }
            at += 1;
        }
        true
    }

    /// Constants and masks that do not fit an instruction take rows of a file that the register's instructions share.
    const fn large_constants(
        &mut self,
        register: &'p Register<'p>,
        instructions: &[Option<&'p Instruction<'p>>; 16],
    ) {
        let mut rows = Rows { values: [0; 64], count: 0 };
        let mut at = 0;
        while at < instructions.len() {
            if let Some(instruction) = instructions[at] {
                let mut index = 0;
                while index < instruction.compares.len() {
                    let compare = &instruction.compares[index];
                    let range = self.device.comparator_constants;
                    let is_large = compare.constant < range.least || compare.constant > range.most;
                    if is_large {
                        rows.add(compare.constant);
                    }
                    if let Some(mask) = compare.mask {
                        rows.add(mask as i64);
                        if is_large && mask as i64 != compare.constant {
                            self.report(
                                Rule::MaskAndConstant,
                                Place::new(register.name).then(instruction.name),
                                compare.constant,
                                Limit {
                                    most: 1,
                                    source: "bf-asm/jbay/salu_inst.cpp, CmpOP::write_regs: inconsistent operand mask",
                                },
                            );
                        }
                    }
                    index += 1;
                }
                index = 0;
                while index < instruction.alus.len() {
                    let alu = &instruction.alus[index];
                    let range = self.device.alu_constants;
                    if let Some(constant) = constant(alu)
                        && (constant < range.least || constant > range.most)
                    {
                        rows.add(constant);
                    }
                    index += 1;
                }
            }
            at += 1;
        }
        self.most(
            Rule::LargeConstants,
            Place::new(register.name),
            rows.count,
            self.device.large_constants,
        );
    }

    const fn instruction(&mut self, register: &'p Register<'p>, instruction: &'p Instruction<'p>) {
        let place = Place::new(register.name).then(instruction.name);
        let compares = instruction.compares;
        self.most(Rule::Comparators, place, compares.len(), self.device.comparators);
        let mut index = 0;
        while index < compares.len() {
            self.compare(register, place, &compares[index]);
            index += 1;
        }
        let alus = instruction.alus;
        let (mut low, mut high) = (0, 0);
        index = 0;
        while index < alus.len() {
            match alus[index].word {
                Word::Low => low += 1,
                Word::High => high += 1,
            }
            self.alu(register, place, &alus[index]);
            self.truth_table(place, alus[index].when, compares.len());
            index += 1;
        }
        self.most(Rule::Alus, place, low, self.device.alus);
        self.most(Rule::Alus, place, high, self.device.alus);
        self.outputs(register, place, instruction);
        let inputs = reads_input(instruction, Input::First) as usize
            + reads_input(instruction, Input::Second) as usize;
        self.most(Rule::InputBits, place, inputs * register.bits as usize, self.device.input_bits);
    }

    const fn compare(&mut self, register: &'p Register<'p>, place: Place<'p>, compare: &Compare) {
        if compare.memory.is_none() && compare.input.is_none() {
            self.report(Rule::ComparatorOperands, place, 0, own(1));
        }
        if let Some(Word::High) = compare.memory
            && !register.is_pair
        {
            self.report(Rule::HighWord, place, 1, own(0));
        }
        if compare.mask.is_some() && self.device.comparator_masks.most == 0 {
            self.report(Rule::ComparatorMasks, place, 1, self.device.comparator_masks);
        }
        let most = mask(register.bits);
        if compare.constant.unsigned_abs() > most as u64 + 1 {
            self.report(Rule::ConstantBits, place, compare.constant, own(most));
        }
    }

    const fn alu(&mut self, register: &'p Register<'p>, place: Place<'p>, alu: &Alu) {
        let is_set = matches!(alu.operation, Operation::Set);
        let operands = [if is_set { alu.b } else { alu.a }, alu.b];
        let (mut memory, mut inputs) = (0, 0);
        let mut index = if is_set { 1 } else { 0 };
        while index < 2 {
            match operands[index] {
                Operand::Memory(word) => {
                    memory += 1;
                    if matches!(word, Word::High) && !register.is_pair {
                        self.report(Rule::HighWord, place, 1, own(0));
                    }
                }
                Operand::Input(_) => inputs += 1,
                Operand::Constant(_) => (),
            }
            index += 1;
        }
        let limit = Limit {
            most: 1,
            source: "bf-asm/salu_inst.cpp, AluOP::Decode::decode: Can't reference memory, phv",
        };
        if memory > 1 {
            self.report_detail(Rule::AluOperands, place, memory, limit, "memory");
        }
        if inputs > 1 {
            self.report_detail(Rule::AluOperands, place, inputs, limit, "inputs");
        }
        if !is_set
            && let (Operand::Constant(a), Operand::Constant(b)) = (alu.a, alu.b)
            && a != b
        {
            let source = "bf-asm/salu_inst.cpp, AluOP::pass1: can only have one constant";
            self.report(Rule::AluConstants, place, 2, Limit { most: 1, source });
        }
        if let Some(constant) = constant(alu) {
            let most = mask(register.bits) as i64;
            if constant > most || constant < -(most / 2 + 1) {
                self.report(Rule::ConstantBits, place, constant, own(most as u32));
            }
        }
    }

    const fn truth_table(&mut self, place: Place<'p>, when: When, comparators: usize) {
        let mut index = 0;
        while index < 4 {
            if index as usize >= comparators && when.depends_on(index) {
                self.report(Rule::TruthTable, place, index as i64, own(comparators as u32));
            }
            index += 1;
        }
    }

    const fn outputs(
        &mut self,
        register: &'p Register<'p>,
        place: Place<'p>,
        instruction: &'p Instruction<'p>,
    ) {
        let outputs = instruction.outputs;
        let mut results = 0;
        let mut index = 0;
        while index < outputs.len() {
            let output = &outputs[index];
            if output.word as u32 >= self.device.outputs.most || output.word > 3 {
                self.report(Rule::Outputs, place, output.word as i64, self.device.outputs);
            }
            if let Origin::Memory(Word::High) = output.origin
                && !register.is_pair
            {
                self.report(Rule::HighWord, place, 1, own(0));
            }
            if matches!(output.origin, Origin::Result) {
                results += 1;
            }
            let mut other = 0;
            while other < index {
                if outputs[other].word == output.word {
                    self.report(Rule::OutputOnce, place, 2, own(1));
                }
                other += 1;
            }
            self.truth_table(place, output.when, instruction.compares.len());
            index += 1;
        }
        let source = "bf-asm/salu_inst.cpp, OutOP::pass1: Only one output of predication allowed";
        self.most(Rule::OutputOnce, place, results, Limit { most: 1, source });
    }

    const fn parser(&mut self) {
        let states = self.pipeline.parser;
        let mut index = 0;
        while index < states.len() {
            self.parser_state(&states[index]);
            index += 1;
        }
    }

    const fn parser_state(&mut self, state: &'p ParserState<'p>) {
        let place = Place::new("parser").then(state.name);
        let mut index = 0;
        while index < state.extracts.len() {
            self.field(place, state.extracts[index].field);
            index += 1;
        }
        self.next(place, state.next.otherwise);
        index = 0;
        while index < state.next.cases.len() {
            self.field(place, state.next.cases[index].field);
            self.next(place, state.next.cases[index].next);
            index += 1;
        }
    }

    const fn next(&mut self, place: Place<'p>, next: Next) {
        if let Next::State(state) = next
            && state >= self.pipeline.parser.len()
        {
            self.report(
                Rule::ParserState,
                place,
                state as i64,
                own(self.pipeline.parser.len() as u32),
            );
        }
    }

    const fn tables(&mut self, gress: Gress) {
        let tables = self.pipeline.tables(gress);
        let mut index = 0;
        while index < tables.len() {
            let table = &tables[index];
            let mut other = 0;
            while other < index {
                if same(tables[other].name, table.name) {
                    self.report_detail(Rule::Names, Place::new(table.name), 2, own(1), table.name);
                }
                other += 1;
            }
            self.gateway(table);
            self.lookup(table);
            other = 0;
            while other < table.actions.len() {
                self.action(table, other);
                other += 1;
            }
            index += 1;
        }
    }

    const fn gateway(&mut self, table: &'p Table<'p>) {
        let place = Place::new(table.name).then("gateway");
        let rows = table.gateway.rows;
        self.most(Rule::GatewayRows, place, rows.len(), self.device.gateway_rows);
        self.then(table, place, table.gateway.otherwise);
        let mut masks = [0u32; FIELDS_MAX];
        let mut row = 0;
        while row < rows.len() {
            self.then(table, place, rows[row].then);
            self.matches(place, rows[row].all, &mut masks);
            row += 1;
        }
        self.most(Rule::GatewayBits, place, ones(&masks), self.device.gateway_bits);
    }

    const fn matches(&mut self, place: Place<'p>, all: &[Match], masks: &mut [u32; FIELDS_MAX]) {
        let mut index = 0;
        while index < all.len() {
            let Match { field, mask: bits, value } = all[index];
            self.field(place, field);
            if value & !bits != 0 || value & !mask(field.bits) != 0 {
                self.report_detail(
                    Rule::MatchBits,
                    place,
                    value as i64,
                    own(bits),
                    self.name_of(field),
                );
            }
            masks[field.index as usize % FIELDS_MAX] |= bits;
            index += 1;
        }
    }

    const fn then(&mut self, table: &'p Table<'p>, place: Place<'p>, then: Then) {
        if let Then::Run(action) = then {
            self.action_index(table, place, action);
        }
    }

    const fn action_index(&mut self, table: &'p Table<'p>, place: Place<'p>, action: usize) {
        if action >= table.actions.len() {
            self.report(
                Rule::ActionDeclared,
                place,
                action as i64,
                own(table.actions.len() as u32),
            );
        }
    }

    const fn lookup(&mut self, table: &'p Table<'p>) {
        let place = Place::new(table.name).then("lookup");
        match table.lookup {
            Lookup::None => {
                if looks_up(table) {
                    self.action_index(table, place, 0);
                }
            }
            Lookup::Ternary(entries) => {
                let mut masks = [0u32; FIELDS_MAX];
                let mut index = 0;
                while index < entries.len() {
                    self.action_index(table, place, entries[index].action);
                    self.matches(place, entries[index].all, &mut masks);
                    index += 1;
                }
            }
            Lookup::Exact { key, entries, data_bits, miss } => {
                if key.is_empty() {
                    self.report(Rule::KeyFields, place, 0, own(KEY_FIELDS_MAX as u32));
                }
                self.most(Rule::KeyFields, place, key.len(), own(KEY_FIELDS_MAX as u32));
                let mut index = 0;
                while index < key.len() {
                    self.field(place, key[index]);
                    index += 1;
                }
                if let Some(action) = miss {
                    self.action_index(table, place, action);
                }
                self.entries(place, entries, data_bits);
            }
            Lookup::Direct { index, entries, data_bits } => {
                self.field(place, index);
                self.entries(place, entries, data_bits);
            }
        }
    }

    const fn entries(&mut self, place: Place<'p>, entries: u32, data_bits: u16) {
        if entries == 0 {
            self.report(Rule::Entries, place, 0, own(1));
        }
        self.most(Rule::DataDeclared, place, data_bits as usize, own(DATA_WORDS_MAX as u32 * 32));
    }

    const fn action(&mut self, table: &'p Table<'p>, number: usize) {
        let action: &'p Action<'p> = &table.actions[number];
        let place = Place::new(table.name).then(action.name);
        let mut earlier = 0;
        while earlier < number {
            if same(table.actions[earlier].name, action.name) {
                self.report_detail(Rule::Names, place, 2, own(1), action.name);
            }
            earlier += 1;
        }
        let instruction = match &action.access {
            None => &Instruction::NOTHING,
            Some(access) => {
                self.access(place, access);
                access.instruction
            }
        };
        let mut index = 0;
        while index < action.ops.len() {
            let op = &action.ops[index];
            self.field(place, op.to);
            let mut other = 0;
            while other < index {
                if action.ops[other].to.index == op.to.index {
                    self.report_detail(Rule::WriteOnce, place, 2, own(1), self.name_of(op.to));
                }
                other += 1;
            }
            self.op(table, place, op, instruction);
            index += 1;
        }
    }

    const fn op(
        &mut self,
        table: &'p Table<'p>,
        place: Place<'p>,
        op: &Op<'p>,
        instruction: &Instruction<'p>,
    ) {
        self.source(table, place, op.to, &op.a, instruction);
        if let Function::ShiftLeft(by) | Function::ShiftRight(by) = op.function
            && by >= op.to.bits
        {
            self.report(Rule::ConstantBits, place, by as i64, own(op.to.bits as u32 - 1));
        }
        if matches!(op.function, Function::Set | Function::ShiftLeft(_) | Function::ShiftRight(_)) {
            return;
        }
        self.source(table, place, op.to, &op.b, instruction);
        if !matches!(op.a, Source::Field(_)) && !matches!(op.b, Source::Field(_)) {
            let source =
                "bf-p4c/mau/action_analysis.cpp: an instruction's second source is a container";
            self.report(Rule::OperationOperands, place, 2, Limit { most: 1, source });
        }
    }

    const fn source(
        &mut self,
        table: &'p Table<'p>,
        place: Place<'p>,
        to: Field,
        source: &Source<'p>,
        instruction: &Instruction<'p>,
    ) {
        match source {
            Source::Field(field) => self.field(place, *field),
            Source::Constant(constant) => {
                if *constant > mask(to.bits) {
                    self.report(Rule::ConstantBits, place, *constant as i64, own(mask(to.bits)));
                }
            }
            Source::Data(word) => {
                let data_bits = match table.lookup {
                    Lookup::Exact { data_bits, .. } | Lookup::Direct { data_bits, .. } => data_bits,
                    Lookup::None | Lookup::Ternary(_) => 0,
                };
                // The last word may be narrower than 32 bits.
                if *word as u32 * 32 >= data_bits as u32 {
                    self.report(
                        Rule::DataDeclared,
                        place,
                        (*word as i64 + 1) * 32,
                        own(data_bits as u32),
                    );
                }
            }
            Source::Output(word) => {
                let mut is_there = false;
                let mut index = 0;
                while index < instruction.outputs.len() {
                    is_there |= instruction.outputs[index].word == *word;
                    index += 1;
                }
                if !is_there {
                    self.report(
                        Rule::OutputDeclared,
                        place,
                        *word as i64,
                        own(instruction.outputs.len() as u32),
                    );
                }
            }
            Source::Hash(hash) => {
                let most = hash.polynomial.bits() as u32;
                self.most(Rule::HashBits, place, hash.bits as usize, own(most));
                let mut index = 0;
                while index < hash.fields.len() {
                    self.field(place, hash.fields[index]);
                    index += 1;
                }
            }
        }
    }

    const fn access(&mut self, place: Place<'p>, access: &Access<'p>) {
        if access.register >= self.pipeline.registers.len() {
            let registers = self.pipeline.registers.len() as u32;
            self.report(Rule::RegisterDeclared, place, access.register as i64, own(registers));
        }
        self.field(place, access.index);
        let mut index = 0;
        while index < 2 {
            let input = if index == 0 { Input::First } else { Input::Second };
            match access.inputs[index] {
                Some(field) => self.field(place, field),
                None => {
                    if reads_input(access.instruction, input) {
                        self.report_detail(
                            Rule::InputDeclared,
                            place,
                            1,
                            own(0),
                            access.instruction.name,
                        );
                    }
                }
            }
            index += 1;
        }
    }

    const fn mirrors(&mut self) {
        let mirrors = self.pipeline.mirrors;
        self.most(
            Rule::Mirrors,
            Place::new(self.pipeline.name),
            mirrors.len(),
            self.device.mirrors,
        );
        let mut index = 0;
        while index < mirrors.len() {
            let place = Place::new("mirror").then(mirrors[index].name);
            let mut pair = 0;
            while pair < mirrors[index].carries.len() {
                self.field(place, mirrors[index].carries[pair].0);
                self.field(place, mirrors[index].carries[pair].1);
                pair += 1;
            }
            index += 1;
        }
    }
}

impl Check<'_, '_> {
    const fn intrinsic(&mut self) {
        let intrinsic = self.pipeline.intrinsic;
        let fields = [intrinsic.drop, intrinsic.mirror, intrinsic.digest, intrinsic.source];
        let mut index = 0;
        while index < fields.len() {
            if let Some(field) = fields[index] {
                self.field(Place::new("intrinsic"), field);
            }
            index += 1;
        }
    }
}

/// Rows of a register file.
struct Rows {
    values: [i64; 64],
    count: usize,
}

impl Rows {
    const fn add(&mut self, value: i64) {
        let mut at = 0;
        while at < self.count && at < self.values.len() {
            if self.values[at] == value {
                return;
            }
            at += 1;
        }
        if self.count < self.values.len() {
            self.values[self.count] = value;
        }
        self.count += 1;
    }
}

/// The constant of an ALU, if it has one.
const fn constant(alu: &Alu) -> Option<i64> {
    match (alu.operation, alu.a, alu.b) {
        (_, _, Operand::Constant(constant)) => Some(constant),
        (Operation::Set, _, _) => None,
        (_, Operand::Constant(constant), _) => Some(constant),
        _ => None,
    }
}

/// Whether an instruction reads an input.
const fn reads_input(instruction: &Instruction<'_>, input: Input) -> bool {
    let mut index = 0;
    while index < instruction.compares.len() {
        if let Some(read) = instruction.compares[index].input
            && read as u8 == input as u8
        {
            return true;
        }
        index += 1;
    }
    index = 0;
    while index < instruction.alus.len() {
        let alu = &instruction.alus[index];
        if let Operand::Input(read) = alu.b
            && read as u8 == input as u8
        {
            return true;
        }
        if let Operand::Input(read) = alu.a
            && read as u8 == input as u8
            && !matches!(alu.operation, Operation::Set)
        {
            return true;
        }
        index += 1;
    }
    index = 0;
    while index < instruction.outputs.len() {
        if let Origin::Input(read) = instruction.outputs[index].origin
            && read as u8 == input as u8
        {
            return true;
        }
        index += 1;
    }
    false
}

/// Whether a table's gateway lets packets through to the lookup.
const fn looks_up(table: &Table<'_>) -> bool {
    let mut index = 0;
    while index < table.gateway.rows.len() {
        if matches!(table.gateway.rows[index].then, Then::Lookup) {
            return true;
        }
        index += 1;
    }
    matches!(table.gateway.otherwise, Then::Lookup)
}

const fn ones(masks: &[u32; FIELDS_MAX]) -> usize {
    let (mut sum, mut index) = (0, 0);
    while index < masks.len() {
        sum += masks[index].count_ones() as usize;
        index += 1;
    }
    sum
}

const fn same(one: &str, other: &str) -> bool {
    let (one, other) = (one.as_bytes(), other.as_bytes());
    if one.len() != other.len() {
        return false;
    }
    let mut at = 0;
    while at < one.len() {
        if one[at] != other[at] {
            return false;
        }
        at += 1;
    }
    true
}
