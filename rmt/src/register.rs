//! Registers: memory of a pipeline stage that a stateful ALU reads, modifies and writes once for each packet.
//!
//! A stateful ALU has up to four [`Instruction`]s, of which an action runs one. Within an instruction, comparators compare memory
//! with packet fields; their results select, by truth table, which ALUs write and which outputs leave.

use crate::field::mask;
use crate::state::Memory;

/// A register: an array in the memory of one pipeline stage, with a stateful ALU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Register<'p> {
    /// Name, as messages print it.
    pub name: &'p str,
    /// Width of a word in bits: 8, 16 or 32.
    pub bits: u8,
    /// Whether an entry is a pair of words, the low and the high one.
    pub is_pair: bool,
    /// Number of entries.
    pub entries: u32,
}

/// Identity of a register: its index in [`Pipeline::registers`](crate::Pipeline::registers). [`registers!`](crate::registers)
/// declares them.
pub type RegisterId = usize;

/// Declares the registers of a pipeline: the identity of each as a constant, and `REGISTERS`, the list for
/// [`Pipeline::registers`](crate::Pipeline::registers).
///
/// ```
/// wave_rmt::registers! {
///     /// Packets of a flow.
///     PACKETS = Register { name: "packets", bits: 32, is_pair: false, entries: 4096 },
/// }
/// assert_eq!(REGISTERS[PACKETS].entries, 4096);
/// ```
#[macro_export]
macro_rules! registers {
    ($($(#[$meta:meta])* $constant:ident = Register $body:tt),* $(,)?) => {
        #[allow(non_camel_case_types, clippy::upper_case_acronyms, dead_code)]
        enum RegisterIndex { $($constant),* }
        $(
            $(#[$meta])*
            pub const $constant: $crate::register::RegisterId = RegisterIndex::$constant as usize;
        )*
        /// All registers, by identity.
        pub const REGISTERS: &[$crate::Register<'static>] = &[$($crate::Register $body),*];
    };
}

/// One instruction of a stateful ALU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Instruction<'p> {
    /// Name, unique within the register.
    pub name: &'p str,
    /// Comparators. Bit `i` of the comparators' result is the truth of comparator `i`.
    pub compares: &'p [Compare],
    /// ALUs. The results of two ALUs for the same word are ORed.
    pub alus: &'p [Alu],
    /// Words that leave for the action.
    pub outputs: &'p [Output],
}

impl Instruction<'_> {
    /// An instruction that does nothing: what others are built on.
    pub const NOTHING: Instruction<'static> =
        Instruction { name: "nothing", compares: &[], alus: &[], outputs: &[] };
}

/// A set of the comparators' 16 possible results: bit `i` says whether result `i` belongs to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct When(pub u16);

impl When {
    /// Every result.
    pub const ALWAYS: When = When(0xffff);

    /// The results in which comparator `index`, 0 to 3, is true.
    ///
    /// # Panics
    /// If there is no such comparator on any chip.
    pub const fn true_at(index: u8) -> When {
        assert!(index < 4, "comparators are numbered from 0 to 3");
        When([0xaaaa, 0xcccc, 0xf0f0, 0xff00][index as usize])
    }

    /// The results that are in both sets.
    pub const fn and(self, other: When) -> When {
        When(self.0 & other.0)
    }

    /// The results that are in either set.
    pub const fn or(self, other: When) -> When {
        When(self.0 | other.0)
    }

    /// The other results.
    pub const fn not(self) -> When {
        When(!self.0)
    }

    /// Whether a result belongs to the set.
    #[inline(always)]
    pub const fn has(self, result: u32) -> bool {
        self.0 >> (result & 15) & 1 == 1
    }

    /// Whether the set tells apart results that differ in comparator `index` only.
    pub const fn depends_on(self, index: u8) -> bool {
        let set = When::true_at(index).0;
        let shift = 1u32 << index;
        (self.0 & set) >> shift != self.0 & !set
    }
}

/// A word of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Word {
    /// The entry's word; the low one of a pair.
    Low,
    /// The high word of a pair.
    High,
}

/// A packet field that the action hands to the stateful ALU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Input {
    /// The first.
    First,
    /// The second.
    Second,
}

/// How a comparator compares its sum with zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Relation {
    /// The sum is zero.
    Equal,
    /// The sum is not zero.
    NotEqual,
    /// The sum is above zero.
    Greater,
    /// The sum is not above zero.
    LessOrEqual,
    /// The sum is not below zero.
    GreaterOrEqual,
    /// The sum is below zero.
    Less,
}

/// How a comparator reads its operands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// As unsigned numbers; the sum is exact.
    Unsigned,
    /// As signed numbers; the sum is exact.
    Signed,
    /// As unsigned numbers; the sum is cut to the word and read as a signed number, which orders numbers that wrap around, as
    /// sequence numbers do.
    Serial,
}

/// A comparator: (memory + field + constant) in relation to zero. Memory and field may be negated and masked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Compare {
    /// The relation.
    pub relation: Relation,
    /// How the operands are read.
    pub kind: Kind,
    /// The word of memory, if one is compared.
    pub memory: Option<Word>,
    /// Whether memory is subtracted.
    pub is_memory_negative: bool,
    /// The packet field, if one is compared.
    pub input: Option<Input>,
    /// Whether the field is subtracted.
    pub is_input_negative: bool,
    /// Bits of memory and field that count; `None` for all.
    pub mask: Option<u32>,
    /// The constant.
    pub constant: i64,
}

impl Compare {
    /// A field in relation to memory: field - memory.
    pub const fn against_memory(
        kind: Kind,
        input: Input,
        relation: Relation,
        memory: Word,
    ) -> Compare {
        Compare {
            relation,
            kind,
            memory: Some(memory),
            is_memory_negative: true,
            input: Some(input),
            is_input_negative: false,
            mask: None,
            constant: 0,
        }
    }

    /// Memory in relation to a constant: memory - constant.
    pub const fn memory(kind: Kind, memory: Word, relation: Relation, constant: i64) -> Compare {
        Compare {
            relation,
            kind,
            memory: Some(memory),
            is_memory_negative: false,
            input: None,
            is_input_negative: false,
            mask: None,
            constant: -constant,
        }
    }

    /// A field in relation to a constant: field - constant.
    pub const fn input(kind: Kind, input: Input, relation: Relation, constant: i64) -> Compare {
        Compare {
            relation,
            kind,
            memory: None,
            is_memory_negative: false,
            input: Some(input),
            is_input_negative: false,
            mask: None,
            constant: -constant,
        }
    }

    /// The comparator with a constant added to its sum.
    pub const fn plus(self, constant: i64) -> Compare {
        Compare { constant: self.constant + constant, ..self }
    }

    /// The comparator with only these bits of memory and field counting.
    pub const fn masked(self, mask: u32) -> Compare {
        Compare { mask: Some(mask), ..self }
    }

    /// An operand as the comparator reads it.
    #[inline(always)]
    fn read(&self, value: u32, bits: u8) -> i64 {
        let value = value & self.mask.unwrap_or(u32::MAX);
        match self.kind {
            Kind::Signed => signed(value, bits),
            Kind::Unsigned | Kind::Serial => i64::from(value),
        }
    }

    #[inline(always)]
    fn holds(&self, memory: [u32; 2], inputs: [u32; 2], bits: u8) -> bool {
        let memory = match self.memory {
            Some(word) => self.read(memory[word as usize], bits),
            None => 0,
        };
        let input = match self.input {
            Some(input) => self.read(inputs[input as usize], bits),
            None => 0,
        };
        let sum = self.constant
            + if self.is_memory_negative { -memory } else { memory }
            + if self.is_input_negative { -input } else { input };
        let sum = if self.kind == Kind::Serial { signed(sum as u32, bits) } else { sum };
        match self.relation {
            Relation::Equal => sum == 0,
            Relation::NotEqual => sum != 0,
            Relation::Greater => sum > 0,
            Relation::LessOrEqual => sum <= 0,
            Relation::GreaterOrEqual => sum >= 0,
            Relation::Less => sum < 0,
        }
    }
}

/// The lowest `bits` bits, read as a signed number.
#[inline(always)]
fn signed(value: u32, bits: u8) -> i64 {
    let shift = 32 - u32::from(bits.clamp(1, 32));
    i64::from((value << shift) as i32 >> shift)
}

/// Operation of a stateful ALU on operands `a` and `b`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// a + b, modulo the word.
    Add,
    /// a - b, modulo the word.
    Subtract,
    /// a + b, at most the largest word.
    AddSaturating,
    /// a - b, at least 0.
    SubtractSaturating,
    /// The smaller one, unsigned.
    Minimum,
    /// The larger one, unsigned.
    Maximum,
    /// a and b, bit by bit.
    And,
    /// a or b, bit by bit.
    Or,
    /// Exclusive or, bit by bit.
    Xor,
    /// b.
    Set,
}

/// Operand of a stateful ALU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operand {
    /// A word of memory.
    Memory(Word),
    /// A packet field.
    Input(Input),
    /// A constant.
    Constant(i64),
}

impl Operand {
    #[inline(always)]
    fn read(self, memory: [u32; 2], inputs: [u32; 2], bits: u8) -> u32 {
        match self {
            Operand::Memory(word) => memory[word as usize],
            Operand::Input(input) => inputs[input as usize],
            Operand::Constant(constant) => constant as u32 & mask(bits),
        }
    }
}

/// An ALU of an instruction, which writes a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Alu {
    /// The comparators' results for which it writes.
    pub when: When,
    /// The word that it writes. The high word of a register without pairs is not stored: it can only leave as an output.
    pub word: Word,
    /// The operation.
    pub operation: Operation,
    /// First operand.
    pub a: Operand,
    /// Second operand.
    pub b: Operand,
}

impl Alu {
    /// An ALU that always writes the low word.
    pub const fn low(operation: Operation, a: Operand, b: Operand) -> Alu {
        Alu { when: When::ALWAYS, word: Word::Low, operation, a, b }
    }

    /// An ALU that always writes the high word.
    pub const fn high(operation: Operation, a: Operand, b: Operand) -> Alu {
        Alu { when: When::ALWAYS, word: Word::High, operation, a, b }
    }

    /// An ALU that always sets the low word to an operand.
    pub const fn set(b: Operand) -> Alu {
        Alu::low(Operation::Set, Operand::Constant(0), b)
    }

    /// An ALU that always sets the high word to an operand.
    pub const fn set_high(b: Operand) -> Alu {
        Alu::high(Operation::Set, Operand::Constant(0), b)
    }

    /// The ALU, writing for these results only.
    pub const fn when(self, when: When) -> Alu {
        Alu { when, ..self }
    }

    #[inline(always)]
    fn result(&self, memory: [u32; 2], inputs: [u32; 2], bits: u8) -> u32 {
        let a = self.a.read(memory, inputs, bits);
        let b = self.b.read(memory, inputs, bits);
        let value = match self.operation {
            Operation::Add => a.wrapping_add(b),
            Operation::Subtract => a.wrapping_sub(b),
            Operation::AddSaturating => a.saturating_add(b).min(mask(bits)),
            Operation::SubtractSaturating => a.saturating_sub(b),
            Operation::Minimum => a.min(b),
            Operation::Maximum => a.max(b),
            Operation::And => a & b,
            Operation::Or => a | b,
            Operation::Xor => a ^ b,
            Operation::Set => b,
        };
        value & mask(bits)
    }
}

/// Value that an output takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// A word of memory as it was before the instruction.
    Memory(Word),
    /// A packet field that the action handed in.
    Input(Input),
    /// What the ALUs of a word computed; memory before the instruction if none wrote.
    Alu(Word),
    /// The comparators' result `r` as bit `r` of 16.
    Result,
}

/// An output of an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Output {
    /// The comparators' results for which the value leaves; otherwise the output is 0.
    pub when: When,
    /// Output word, 0 to 3.
    pub word: u8,
    /// The value.
    pub origin: Origin,
}

impl Output {
    /// An output that always leaves.
    pub const fn word(word: u8, origin: Origin) -> Output {
        Output { when: When::ALWAYS, word, origin }
    }

    /// The output, leaving for these results only.
    pub const fn when(self, when: When) -> Output {
        Output { when, ..self }
    }
}

/// How much of an action the compiler knows: the lengths of its lists, or [`UNKNOWN`], and where its register lies.
pub(crate) trait Known {
    /// Memory of the register, if it is known and the action has one.
    const MEMORY: Option<Memory>;
    /// Operations on fields.
    const OPS: usize;
    /// Comparators of the instruction.
    const COMPARES: usize;
    /// ALUs of the instruction.
    const ALUS: usize;
    /// Outputs of the instruction.
    const OUTPUTS: usize;
}

/// Length of a list that is known at run time only.
pub(crate) const UNKNOWN: usize = usize::MAX;

/// Runs `body` for each element of a list: in a loop if the length is unknown, and else once for each index, so that the compiler
/// sees each element of a constant list by itself. A list of known length has at most 16 elements. The body gets the index, too.
macro_rules! each {
    ($length:expr; ($at:ident, $item:ident) in $slice:expr, $body:block) => {
        if const { $length == crate::register::UNKNOWN } {
            for ($at, $item) in $slice.iter().enumerate() $body
        } else {
            const { assert!($length == crate::register::UNKNOWN || $length <= 16, "a list of a specialised pipeline has at most 16 elements") };
            crate::register::each!(@ $length; $at $item $slice, $body, 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15);
        }
    };
    (@ $length:expr; $at:ident $item:ident $slice:expr, $body:block, $($index:literal)*) => {
        $(if const { $length != crate::register::UNKNOWN && $length > $index } {
            let ($at, $item) = ($index, &$slice[$index]);
            $body
        })*
    };
}
pub(crate) use each;

impl Instruction<'_> {
    /// Runs the instruction on an entry of a register of `bits` bits. Returns the output words.
    #[inline(always)]
    pub(crate) fn run<K: Known>(
        &self,
        memory: &mut [u32; 2],
        inputs: [u32; 2],
        bits: u8,
        is_pair: bool,
    ) -> [u32; 4] {
        let before = *memory;
        let inputs = [inputs[0] & mask(bits), inputs[1] & mask(bits)];
        let mut result = 0u32;
        each!(K::COMPARES; (at, compare) in self.compares, {
            result |= u32::from(compare.holds(before, inputs, bits)) << at;
        });
        let mut written: [Option<u32>; 2] = [None; 2];
        each!(K::ALUS; (_at, alu) in self.alus, {
            if alu.when.has(result) {
                let word = &mut written[alu.word as usize];
                *word = Some(word.unwrap_or(0) | alu.result(before, inputs, bits));
            }
        });
        let after = [written[0].unwrap_or(before[0]), written[1].unwrap_or(before[1])];
        memory[0] = after[0];
        if is_pair {
            memory[1] = after[1];
        }
        let mut outputs = [0; 4];
        each!(K::OUTPUTS; (_at, output) in self.outputs, {
            if output.when.has(result) {
                outputs[usize::from(output.word) & 3] |= match output.origin {
                    Origin::Memory(word) => before[word as usize],
                    Origin::Input(input) => inputs[input as usize],
                    Origin::Alu(word) => after[word as usize],
                    Origin::Result => 1 << (result & 15),
                };
            }
        });
        outputs
    }
}
