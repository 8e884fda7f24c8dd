//! Shape: what each register, table, action and parser state may be for itself. All of it runs at compile time.

mod registers;
mod tables;

use super::{Place, Rule, Violation, Violations};
use crate::devices::{Device, Limit};
use crate::field::{FIELDS_MAX, Field};
use crate::parser::{Next, ParserState};
use crate::pipeline::{Gress, Pipeline};
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
            Rule::Fields,
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
