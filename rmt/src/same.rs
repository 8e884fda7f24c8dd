//! Whether two instructions are the same, at compile time, where `==` is not to be had.

use crate::register::{Alu, Compare, Instruction, Operand, Origin, Output};

impl Instruction<'_> {
    /// Whether two instructions are the same in everything but their names.
    pub(crate) const fn does_the_same(&self, other: &Instruction<'_>) -> bool {
        if self.compares.len() != other.compares.len()
            || self.alus.len() != other.alus.len()
            || self.outputs.len() != other.outputs.len()
        {
            return false;
        }
        let mut at = 0;
        while at < self.compares.len() {
            if !same(&self.compares[at].numbers(), &other.compares[at].numbers()) {
                return false;
            }
            at += 1;
        }
        at = 0;
        while at < self.alus.len() {
            if !same(&self.alus[at].numbers(), &other.alus[at].numbers()) {
                return false;
            }
            at += 1;
        }
        at = 0;
        while at < self.outputs.len() {
            if !same(&self.outputs[at].numbers(), &other.outputs[at].numbers()) {
                return false;
            }
            at += 1;
        }
        true
    }
}

const fn same(one: &[i64], other: &[i64]) -> bool {
    let mut at = 0;
    while at < one.len() {
        if one[at] != other[at] {
            return false;
        }
        at += 1;
    }
    true
}

impl Compare {
    /// The comparator in numbers: different ones differ.
    const fn numbers(&self) -> [i64; 8] {
        let memory = match self.memory {
            None => -1,
            Some(word) => word as i64,
        };
        let input = match self.input {
            None => -1,
            Some(input) => input as i64,
        };
        let mask = match self.mask {
            None => -1,
            Some(mask) => mask as i64,
        };
        [
            self.relation as i64,
            self.kind as i64,
            memory,
            self.is_memory_negative as i64,
            input,
            self.is_input_negative as i64,
            mask,
            self.constant,
        ]
    }
}

impl Operand {
    const fn numbers(self) -> [i64; 2] {
        match self {
            Operand::Memory(word) => [0, word as i64],
            Operand::Input(input) => [1, input as i64],
            Operand::Constant(constant) => [2, constant],
        }
    }
}

impl Alu {
    const fn numbers(&self) -> [i64; 7] {
        let ([a, a_value], [b, b_value]) = (self.a.numbers(), self.b.numbers());
        [self.when.0 as i64, self.word as i64, self.operation as i64, a, a_value, b, b_value]
    }
}

impl Output {
    const fn numbers(&self) -> [i64; 4] {
        let (origin, value) = match self.origin {
            Origin::Memory(word) => (0, word as i64),
            Origin::Input(input) => (1, input as i64),
            Origin::Alu(word) => (2, word as i64),
            Origin::Result => (3, 0),
        };
        [self.when.0 as i64, self.word as i64, origin, value]
    }
}
