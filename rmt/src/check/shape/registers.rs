//! Shape of registers and of their instructions.

use super::{Check, own, same};
use crate::check::{Place, Rule};
use crate::devices::Limit;
use crate::field::{Field, mask};
use crate::pipeline::Gress;
use crate::register::{
    Alu, Compare, Input, Instruction, Operand, Operation, Origin, Register, When, Word,
};
use crate::table::Access;

impl<'p> Check<'_, 'p> {
    pub(super) const fn registers(&mut self) {
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
    pub(super) const fn uses(&mut self, id: usize) {
        let register = &self.pipeline.registers[id];
        let place = Place::new(register.name);
        let mut inputs = [None; 2];
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
                        self.inputs(place, &mut inputs, access);
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

    /// Whether an access reads the fields that others of the register read, as the same inputs.
    pub(super) const fn inputs(
        &mut self,
        place: Place<'p>,
        inputs: &mut [Option<Field>; 2],
        access: &Access<'p>,
    ) {
        let mut index = 0;
        while index < 2 {
            let input = if index == 0 { Input::First } else { Input::Second };
            if let Some(field) = access.inputs[index]
                && reads_input(access.instruction, input)
            {
                match inputs[index] {
                    None => inputs[index] = Some(field),
                    Some(other) => {
                        if other.index != field.index {
                            let source = "bf-p4c/mau/ixbar.cpp, allocStateful: one or two sources of the stateful ALU";
                            let limit = Limit { most: 1, source };
                            self.report_detail(Rule::Inputs, place, 2, limit, self.name_of(field));
                        }
                    }
                }
            }
            index += 1;
        }
    }

    /// Whether an instruction is none of those. Two with one name are one.
    pub(super) const fn is_new(
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
    pub(super) const fn large_constants(
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

    pub(super) const fn instruction(
        &mut self,
        register: &'p Register<'p>,
        instruction: &'p Instruction<'p>,
    ) {
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
    }

    pub(super) const fn compare(
        &mut self,
        register: &'p Register<'p>,
        place: Place<'p>,
        compare: &Compare,
    ) {
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
        if compare.constant.unsigned_abs() > most as u64 {
            self.report(Rule::ConstantBits, place, compare.constant, own(most));
        }
    }

    pub(super) const fn alu(&mut self, register: &'p Register<'p>, place: Place<'p>, alu: &Alu) {
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

    pub(super) const fn truth_table(&mut self, place: Place<'p>, when: When, comparators: usize) {
        let mut index = 0;
        while index < 4 {
            if index as usize >= comparators && when.depends_on(index) {
                self.report(Rule::TruthTable, place, index as i64, own(comparators as u32));
            }
            index += 1;
        }
    }

    pub(super) const fn outputs(
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
        self.most(Rule::ResultOnce, place, results, Limit { most: 1, source });
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
pub(super) const fn reads_input(instruction: &Instruction<'_>, input: Input) -> bool {
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
