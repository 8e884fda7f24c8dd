//! Packet fields: the packet header vector (PHV) that accompanies a packet through the pipeline stages.

use core::fmt;

/// Limit of the fields of a pipeline.
pub const FIELDS_MAX: usize = 128;

/// A field of the packet header vector. [`fields!`](crate::fields) declares the fields of a pipeline.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Field {
    /// Index in the pipeline's list of fields.
    pub index: u8,
    /// Width in bits: 1 to 32.
    pub bits: u8,
}

/// What a pipeline's list says about a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Declared<'p> {
    /// Name, as messages print it.
    pub name: &'p str,
    /// Width in bits.
    pub bits: u8,
}

/// Declares the fields of a pipeline: a constant for each, and `FIELDS`, the list for [`Pipeline::fields`](crate::Pipeline::fields).
///
/// ```
/// wave_rmt::fields! {
///     /// Hash of the addresses.
///     ROW = row: 16,
///     /// Packets counted so far.
///     COUNT = count: 32,
/// }
/// assert_eq!(FIELDS[usize::from(COUNT.index)].name, "count");
/// ```
#[macro_export]
macro_rules! fields {
    ($($(#[$meta:meta])* $constant:ident = $name:ident: $bits:literal),* $(,)?) => {
        #[allow(non_camel_case_types, clippy::upper_case_acronyms, dead_code)]
        enum FieldIndex { $($constant),* }
        $(
            $(#[$meta])*
            pub const $constant: $crate::Field =
                $crate::Field { index: FieldIndex::$constant as u8, bits: $bits };
        )*
        /// All fields, by index.
        pub const FIELDS: &[$crate::field::Declared<'static>] = &[
            $($crate::field::Declared { name: stringify!($name), bits: $bits }),*
        ];
    };
}

/// The packet header vector: the values of all fields of one packet. A field that nothing has written is 0.
///
/// Fields of 32 bits are `WORD` bits wide: fewer than 32 let an exhaustive search go around all values of sequence numbers.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Phv<const WORD: u8 = 32> {
    values: [u32; FIELDS_MAX],
}

impl<const WORD: u8> Default for Phv<WORD> {
    #[inline]
    fn default() -> Phv<WORD> {
        Phv { values: [0; FIELDS_MAX] }
    }
}

impl<const WORD: u8> Phv<WORD> {
    /// A field's value.
    #[inline(always)]
    pub fn get(&self, field: Field) -> u32 {
        self.values[usize::from(field.index) % FIELDS_MAX]
    }

    /// A field's value as gateways and ternary memory see it: a word narrower than 32 bits repeats its highest bit.
    #[inline(always)]
    pub(crate) fn get_extended(&self, field: Field) -> u32 {
        let value = self.get(field);
        if WORD < 32 && field.bits == 32 {
            let shift = 32 - u32::from(WORD);
            ((value << shift) as i32 >> shift) as u32
        } else {
            value
        }
    }

    /// Writes a field. Bits beyond the field's width are dropped.
    #[inline(always)]
    pub fn set(&mut self, field: Field, value: u32) {
        self.values[usize::from(field.index) % FIELDS_MAX] = value & word_mask::<WORD>(field.bits);
    }

    /// The vector with a field written.
    #[inline]
    pub fn with(mut self, field: Field, value: u32) -> Phv<WORD> {
        self.set(field, value);
        self
    }
}

impl<const WORD: u8> fmt::Debug for Phv<WORD> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let written = self.values.iter().enumerate().filter(|(_, value)| **value != 0);
        f.debug_map().entries(written).finish()
    }
}

/// The width of a field or word declared with `bits`, if words have `WORD` bits.
#[inline(always)]
pub(crate) const fn word_bits<const WORD: u8>(bits: u8) -> u8 {
    if bits == 32 { WORD } else { bits }
}

/// All bits of such a field.
#[inline(always)]
pub(crate) const fn word_mask<const WORD: u8>(bits: u8) -> u32 {
    mask(word_bits::<WORD>(bits))
}

/// The lowest `bits` bits, all ones.
#[inline(always)]
pub(crate) const fn mask(bits: u8) -> u32 {
    if bits >= 32 { u32::MAX } else { (1 << bits) - 1 }
}
