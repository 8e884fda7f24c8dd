//! The form of a file: what serde reads and writes. Names are still text.

use std::fmt;
use std::marker::PhantomData;

use serde::de::value::MapAccessDeserializer;
use serde::de::{Error, MapAccess, Unexpected, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A whole number of a range.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Number<const LEAST: i64, const MOST: i64>(pub(crate) i64);

/// Width of a field, a word or a hash.
pub(crate) type Bits = Number<1, 32>;
/// The result of an instruction's comparators.
pub(crate) type ComparatorsResult = Number<0, 15>;
/// An output word of an instruction.
pub(crate) type OutputWord = Number<0, 3>;
/// A word of action data.
pub(crate) type DataWord = Number<0, 7>;
/// Bits to shift by.
pub(crate) type Shift = Number<0, 31>;
pub(crate) type Byte = Number<0, 255>;
pub(crate) type Short = Number<0, 65_535>;
pub(crate) type Unsigned = Number<0, { u32::MAX as i64 }>;
/// A constant of a stateful ALU: the comparators' sums cannot overflow.
pub(crate) type Constant = Number<{ -(u32::MAX as i64) }, { u32::MAX as i64 }>;

impl<const LEAST: i64, const MOST: i64> Number<LEAST, MOST> {
    pub(crate) fn byte(self) -> u8 {
        const { assert!(LEAST >= 0 && MOST <= u8::MAX as i64) };
        self.0 as u8
    }

    pub(crate) fn short(self) -> u16 {
        const { assert!(LEAST >= 0 && MOST <= u16::MAX as i64) };
        self.0 as u16
    }

    pub(crate) fn unsigned(self) -> u32 {
        const { assert!(LEAST >= 0 && MOST <= u32::MAX as i64) };
        self.0 as u32
    }
}

impl<T: Into<i64>, const LEAST: i64, const MOST: i64> From<T> for Number<LEAST, MOST> {
    fn from(number: T) -> Number<LEAST, MOST> {
        Number(number.into())
    }
}

impl<const LEAST: i64, const MOST: i64> Serialize for Number<LEAST, MOST> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_i64(self.0)
    }
}

impl<'de, const LEAST: i64, const MOST: i64> Deserialize<'de> for Number<LEAST, MOST> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_i64(NumberVisitor)
    }
}

struct NumberVisitor<const LEAST: i64, const MOST: i64>;

impl<const LEAST: i64, const MOST: i64> Visitor<'_> for NumberVisitor<LEAST, MOST> {
    type Value = Number<LEAST, MOST>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a whole number from {LEAST} to {MOST}")
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<Self::Value, E> {
        match (LEAST..=MOST).contains(&number) {
            true => Ok(Number(number)),
            false => Err(E::invalid_value(Unexpected::Signed(number), &self)),
        }
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<Self::Value, E> {
        match i64::try_from(number) {
            Ok(number) => self.visit_i64(number),
            Err(_) => Err(E::invalid_value(Unexpected::Unsigned(number), &self)),
        }
    }
}

/// Structures that are objects in a file, and not lists of their values, which serde would take, too.
macro_rules! objects {
    ($($(#[$meta:meta])* struct $name:ident { $($(#[$field_meta:meta])* $field:ident: $type:ty,)* })*) => {$(
        $(#[$meta])*
        #[derive(Serialize, Deserialize)]
        #[serde(remote = "Self", deny_unknown_fields)]
        pub(crate) struct $name {
            $($(#[$field_meta])* pub(crate) $field: $type,)*
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
                $name::serialize(self, to)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                from.deserialize_map(ObjectVisitor::<$name>(PhantomData))
            }
        }

        impl Object for $name {
            fn of_map<'de, A: MapAccess<'de>>(map: A) -> Result<Self, A::Error> {
                $name::deserialize(MapAccessDeserializer::new(map))
            }
        }
    )*};
}

trait Object: Sized {
    fn of_map<'de, A: MapAccess<'de>>(map: A) -> Result<Self, A::Error>;
}

struct ObjectVisitor<T>(PhantomData<T>);

impl<'de, T: Object> Visitor<'de> for ObjectVisitor<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<T, A::Error> {
        T::of_map(map)
    }
}

objects! {
    struct Pipeline {
        name: String,
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        fields: Vec<Field>,
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        registers: Vec<Register>,
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        parser: Vec<ParserState>,
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        ingress: Vec<Table>,
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        egress: Vec<Table>,
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        mirrors: Vec<Mirror>,
        #[serde(default, skip_serializing_if = "is_default")]
        intrinsic: Intrinsic,
        #[serde(default, skip_serializing_if = "is_default")]
        is_ingress_stateless: bool,
    }

    struct Field {
        name: String,
        bits: Bits,
    }

    struct Register {
        name: String,
        bits: Bits,
        #[serde(default, skip_serializing_if = "is_default")]
        is_pair: bool,
        entries: Unsigned,
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        instructions: Vec<Instruction>,
    }

    struct Instruction {
        name: String,
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        compares: Vec<Compare>,
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        alus: Vec<Alu>,
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        outputs: Vec<Output>,
    }

    struct Compare {
        kind: Kind,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        memory: Option<Term<Word>>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        input: Option<Term<Input>>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        mask: Option<Unsigned>,
        #[serde(default, skip_serializing_if = "is_default")]
        constant: Constant,
        relation: Relation,
    }

    struct Alu {
        #[serde(default, skip_serializing_if = "Option::is_none")]
        when: Option<Vec<ComparatorsResult>>,
        word: Word,
        value: AluValue,
    }

    struct Output {
        #[serde(default, skip_serializing_if = "Option::is_none")]
        when: Option<Vec<ComparatorsResult>>,
        word: OutputWord,
        origin: Origin,
    }

    struct ParserState {
        name: String,
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        extracts: Vec<Extract>,
        advance: Short,
        next: Select,
    }

    struct Extract {
        field: String,
        offset_bits: Short,
    }

    struct Select {
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        cases: Vec<Case>,
        otherwise: Next,
    }

    struct Case {
        field: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        mask: Option<Unsigned>,
        value: Unsigned,
        next: Next,
    }

    struct Table {
        name: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        stage: Option<Byte>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        gateway: Option<Gateway>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        lookup: Option<Lookup>,
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        actions: Vec<Action>,
    }

    struct Gateway {
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        rows: Vec<Row>,
        otherwise: Then,
    }

    struct Row {
        all: Vec<Match>,
        then: Then,
    }

    struct Match {
        field: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        mask: Option<Unsigned>,
        value: Unsigned,
    }

    struct TernaryEntry {
        all: Vec<Match>,
        action: String,
    }

    struct Exact {
        key: Vec<String>,
        entries: Unsigned,
        #[serde(default, skip_serializing_if = "is_default")]
        data_bits: Short,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        miss: Option<String>,
    }

    struct Direct {
        index: String,
        entries: Unsigned,
        #[serde(default, skip_serializing_if = "is_default")]
        data_bits: Short,
    }

    struct Action {
        name: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        access: Option<Access>,
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        ops: Vec<Op>,
    }

    struct Access {
        register: String,
        instruction: String,
        index: String,
        #[serde(default, skip_serializing_if = "is_default")]
        inputs: Inputs,
    }

    #[derive(Default, PartialEq)]
    struct Inputs {
        #[serde(default, skip_serializing_if = "Option::is_none")]
        first: Option<String>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        second: Option<String>,
    }

    struct Op {
        to: String,
        value: OpValue,
    }

    struct Hash {
        fields: Vec<String>,
        polynomial: Polynomial,
        bits: Bits,
    }

    struct Mirror {
        name: String,
        carries: Vec<Carry>,
    }

    struct Carry {
        from: String,
        to: String,
    }

    #[derive(Default, PartialEq)]
    struct Intrinsic {
        #[serde(default, skip_serializing_if = "Option::is_none")]
        drop: Option<String>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        mirror: Option<String>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        digest: Option<String>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        source: Option<String>,
    }
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// An operand of a comparator, with its sign.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Term<T> {
    Plus(T),
    Minus(T),
}

/// What an ALU writes: the operation and the operands that it reads.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case", expecting = "a list of two operands")]
pub(crate) enum AluValue {
    Add(Operand, Operand),
    Subtract(Operand, Operand),
    AddSaturating(Operand, Operand),
    SubtractSaturating(Operand, Operand),
    Minimum(Operand, Operand),
    Maximum(Operand, Operand),
    And(Operand, Operand),
    Or(Operand, Operand),
    Xor(Operand, Operand),
    Set(Operand),
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Operand {
    Memory(Word),
    Input(Input),
    Constant(Constant),
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Origin {
    Memory(Word),
    Input(Input),
    Alu(Word),
    Result,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Next {
    State(String),
    Accept,
    Reject,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Then {
    Lookup,
    Run(String),
    Skip,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Lookup {
    Ternary(Vec<TernaryEntry>),
    Exact(Exact),
    Direct(Direct),
}

/// What an operation writes: the function and the operands that it reads.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case", expecting = "a list of two operands")]
pub(crate) enum OpValue {
    Set(Source),
    Add(Source, Source),
    Subtract(Source, Source),
    SubtractSaturating(Source, Source),
    Minimum(Source, Source),
    Maximum(Source, Source),
    And(Source, Source),
    Or(Source, Source),
    Xor(Source, Source),
    ShiftLeft(Source, Shift),
    ShiftRight(Source, Shift),
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Source {
    Field(String),
    Constant(Unsigned),
    Data(DataWord),
    Output(OutputWord),
    Hash(Hash),
}

/// Enumerations that are the machine's.
macro_rules! mirrored {
    ($($path:path as $name:ident { $($variant:ident),* })*) => {$(
        #[derive(Clone, Copy, Serialize, Deserialize)]
        #[serde(rename_all = "snake_case")]
        pub(crate) enum $name {
            $($variant),*
        }

        impl From<$path> for $name {
            fn from(of: $path) -> $name {
                use $path as Of;
                match of {
                    $(Of::$variant => $name::$variant),*
                }
            }
        }

        impl From<$name> for $path {
            fn from(of: $name) -> $path {
                use $path as Of;
                match of {
                    $($name::$variant => Of::$variant),*
                }
            }
        }
    )*};
}

mirrored! {
    wave_rmt::Word as Word { Low, High }
    wave_rmt::Input as Input { First, Second }
    wave_rmt::Kind as Kind { Unsigned, Signed, Serial }
    wave_rmt::Relation as Relation { Equal, NotEqual, Greater, LessOrEqual, GreaterOrEqual, Less }
    wave_rmt::Polynomial as Polynomial { Crc32, Crc32c, Crc16, Crc16Xmodem }
}
