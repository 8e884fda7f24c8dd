//! Branches of a specialised gress: places from which on the compiler has code of its own for each value of a field.
//!
//! Gateways compare a few fields, such as the kind of a packet or its class, in one table after another. Behind a branch such a field
//! is a constant, and these comparisons cost nothing. A branch changes no field: it only tells the compiler what holds.

use crate::field::{Declared, Field, mask};
use crate::table::{Function, Lookup, Source, Table};

/// Values of a field with code of their own; all others share one.
pub(crate) const VALUES_MAX: usize = 8;
/// A branch is worth its code if gateways and fixed entries behind it compare the field this often.
const COMPARISONS_MIN: usize = 4;

/// A branch.
#[derive(Clone, Copy)]
pub(crate) struct Branch {
    /// The field.
    pub(crate) field: Field,
    /// Index of the table before which it stands.
    pub(crate) before: usize,
    /// The values.
    pub(crate) values: [Option<u32>; VALUES_MAX],
}

impl Branch {
    /// The branch at the start of a gress, on a field that no table writes; or the one in its middle, on a field that one table sets
    /// to constants. `None` if no field is compared often enough.
    pub(crate) const fn of(
        tables: &[Table<'_>],
        fields: &[Declared<'_>],
        is_middle: bool,
    ) -> Option<Branch> {
        let mut best = None;
        let mut most = COMPARISONS_MIN - 1;
        let mut index = 0;
        while index < fields.len() {
            let field = Field { index: index as u8, bits: fields[index].bits };
            let before = match last_write(tables, field) {
                Some(Written { table, is_constant: true }) if is_middle => Some(table + 1),
                None if !is_middle => Some(0),
                _ => None,
            };
            if let Some(before) = before {
                let compared = comparisons(tables, before, field, None).0;
                if compared > most {
                    let values = values(tables, before, field);
                    (best, most) = (Some(Branch { field, before, values }), compared);
                }
            }
            index += 1;
        }
        best
    }
}

/// The values with which tables from `first` on compare a field.
const fn values(tables: &[Table<'_>], first: usize, field: Field) -> [Option<u32>; VALUES_MAX] {
    let mut values = [None; VALUES_MAX];
    let mut count = 0;
    while count < VALUES_MAX {
        values[count] = comparisons(tables, first, field, Some(&values)).1;
        count += 1;
    }
    values
}

/// The last table that writes a field.
struct Written {
    table: usize,
    /// Whether it is the only one, and writes constants.
    is_constant: bool,
}

const fn last_write(tables: &[Table<'_>], field: Field) -> Option<Written> {
    let mut written: Option<Written> = None;
    let mut table = 0;
    while table < tables.len() {
        let mut action = 0;
        while action < tables[table].actions.len() {
            let ops = tables[table].actions[action].ops;
            let mut op = 0;
            while op < ops.len() {
                if ops[op].to.index == field.index {
                    let is_set = matches!(
                        (ops[op].function, ops[op].a),
                        (Function::Set, Source::Constant(_))
                    );
                    let is_constant = match &written {
                        Some(before) => is_set && before.table == table && before.is_constant,
                        None => is_set,
                    };
                    written = Some(Written { table, is_constant });
                }
                op += 1;
            }
            action += 1;
        }
        table += 1;
    }
    written
}

/// How often tables from `first` on compare a whole field with a constant, and the first such constant that is not in `known`.
const fn comparisons(
    tables: &[Table<'_>],
    first: usize,
    field: Field,
    known: Option<&[Option<u32>; VALUES_MAX]>,
) -> (usize, Option<u32>) {
    let (mut count, mut new) = (0, None);
    let mut table = first;
    while table < tables.len() {
        let rows = tables[table].gateway.rows;
        let entries = match tables[table].lookup {
            Lookup::Ternary(entries) => entries,
            _ => &[],
        };
        let mut row = 0;
        while row < rows.len() + entries.len() {
            let all = if row < rows.len() { rows[row].all } else { entries[row - rows.len()].all };
            let mut at = 0;
            while at < all.len() {
                if all[at].field.index == field.index && all[at].mask == mask(field.bits) {
                    count += 1;
                    if new.is_none() && !has(known, all[at].value) {
                        new = Some(all[at].value);
                    }
                }
                at += 1;
            }
            row += 1;
        }
        table += 1;
    }
    (count, new)
}

const fn has(known: Option<&[Option<u32>; VALUES_MAX]>, value: u32) -> bool {
    if let Some(known) = known {
        let mut at = 0;
        while at < VALUES_MAX {
            if let Some(other) = known[at]
                && other == value
            {
                return true;
            }
            at += 1;
        }
    }
    false
}
