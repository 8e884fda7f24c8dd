//! Every field of every kind of scenario (docs/adr/0070): the forms of [`wave_scenario`], and those that are read here.

mod rows;

use crate::bakeoff::{self, Plan};
use wave_app_linux::file as enclaves;
use wave_scenario::reference::{self, Written};

pub use wave_scenario::reference::{Field, Form};

const OWN: &[Written] = &[
    Written {
        kinds: &[bakeoff::KIND],
        about: "Memory saved by SOL, DAMON, MGLRU and `memory.reclaim` at equal refaults.",
        run: "`sudo wave run FILE`, on a kernel that has all of them",
        examples: &[rows::BAKEOFF_EXAMPLE],
        unshown: &[],
        rows: rows::BAKEOFF,
        fields: reference::fields::<Plan>,
        check: |source| bakeoff::parse(source.path, source.text).map(drop),
    },
    Written {
        kinds: &[],
        about: "Enclaves on the real kernel, with CPUs, programs and an agent each. Such a file has no `kind`.",
        run: "`sudo wave run --host linux FILE`",
        examples: &[rows::ENCLAVE_EXAMPLE],
        unshown: &[],
        rows: rows::ENCLAVES,
        fields: reference::fields::<enclaves::File>,
        check: |source| enclaves::parse(source.path, source.text).map(drop),
    },
];

fn written() -> impl Iterator<Item = &'static Written> {
    reference::FORMS.iter().chain(OWN)
}

/// All forms, with all of their fields.
pub fn forms() -> Vec<Form> {
    written().map(Written::form).collect()
}

#[cfg(test)]
mod tests;
