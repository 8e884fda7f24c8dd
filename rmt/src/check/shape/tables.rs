//! Shape of tables: gateways, lookups, actions and their operations.

use super::registers::reads_input;
use super::{Check, own, same};
use crate::check::{Place, Rule};
use crate::devices::Limit;
use crate::field::{FIELDS_MAX, Field, mask};
use crate::pipeline::Gress;
use crate::register::{Input, Instruction};
use crate::table::{
    Access, Action, DATA_WORDS_MAX, Function, KEY_FIELDS_MAX, Lookup, Match, Op, Source, Table,
    Then,
};

impl<'p> Check<'_, 'p> {
    pub(super) const fn tables(&mut self, gress: Gress) {
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

    pub(super) const fn gateway(&mut self, table: &'p Table<'p>) {
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

    pub(super) const fn matches(
        &mut self,
        place: Place<'p>,
        all: &[Match],
        masks: &mut [u32; FIELDS_MAX],
    ) {
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

    pub(super) const fn then(&mut self, table: &'p Table<'p>, place: Place<'p>, then: Then) {
        if let Then::Run(action) = then {
            self.action_index(table, place, action);
        }
    }

    pub(super) const fn action_index(
        &mut self,
        table: &'p Table<'p>,
        place: Place<'p>,
        action: usize,
    ) {
        if action >= table.actions.len() {
            self.report(
                Rule::ActionDeclared,
                place,
                action as i64,
                own(table.actions.len() as u32),
            );
        }
    }

    pub(super) const fn lookup(&mut self, table: &'p Table<'p>) {
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

    pub(super) const fn entries(&mut self, place: Place<'p>, entries: u32, data_bits: u16) {
        if entries == 0 {
            self.report(Rule::Entries, place, 0, own(1));
        }
        self.most(Rule::DataBits, place, data_bits as usize, own(DATA_WORDS_MAX as u32 * 32));
    }

    pub(super) const fn action(&mut self, table: &'p Table<'p>, number: usize) {
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

    pub(super) const fn op(
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
            let most = op.to.bits.saturating_sub(1) as u32;
            self.report(Rule::ConstantBits, place, by as i64, own(most));
        }
        if matches!(op.function, Function::Set | Function::ShiftLeft(_) | Function::ShiftRight(_)) {
            return;
        }
        self.source(table, place, op.to, &op.b, instruction);
        if matches!(op.function, Function::SubtractSaturating) && !matches!(op.b, Source::Field(_))
        {
            let source =
                "bf-p4c/mau/action_analysis.cpp: an instruction's second source is a container";
            self.report(Rule::SecondOperand, place, 1, Limit { most: 0, source });
        }
        if !matches!(op.a, Source::Field(_)) && !matches!(op.b, Source::Field(_)) {
            let source =
                "bf-p4c/mau/action_analysis.cpp: an instruction's second source is a container";
            self.report(Rule::OperationOperands, place, 2, Limit { most: 1, source });
        }
    }

    pub(super) const fn source(
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

    pub(super) const fn access(&mut self, place: Place<'p>, access: &Access<'p>) {
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
