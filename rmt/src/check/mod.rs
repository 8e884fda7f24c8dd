//! The checker: whether a chip can do what a pipeline says.
//!
//! It has three grades. [Shape](Pipeline::check) concerns each register, table and action for itself; it runs in the compiler.
//! [Placement](place) gives tables their pipeline stages by what depends on what. The budget counts what the tables of a stage take
//! together; it belongs to the placement, which moves a table to a later stage when an earlier one is full.

mod placement;
mod shape;

use core::fmt;

use crate::devices::Device;
use crate::pipeline::Pipeline;
use crate::text::Text;

pub use placement::{Placed, Placement, Units, place};

/// Limit of the violations that are kept. All are counted.
const KEPT: usize = 32;

/// Declares the rules: what each demands, its name in messages and `--json`, what a violation says, and what to do about it. In what a
/// violation says, `#` stands for what was found, `%` for the limit, `@` for the device, and `$` for the violation's detail.
macro_rules! rules {
    ($($(#[$meta:meta])* $rule:ident, $name:literal, $says:literal, $hint:literal;)*) => {
        /// A rule of the checker.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[non_exhaustive]
        pub enum Rule {
            $($(#[$meta])* $rule,)*
        }

        impl Rule {
            /// All rules.
            pub const ALL: &[Rule] = &[$(Rule::$rule),*];

            /// The rule's name, as `--json` and messages print it.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Rule::$rule => $name,)*
                }
            }

            /// What a violation says.
            const fn says(self) -> &'static str {
                match self {
                    $(Rule::$rule => $says,)*
                }
            }

            /// What the author may do about a violation.
            pub const fn hint(self) -> &'static str {
                match self {
                    $(Rule::$rule => $hint,)*
                }
            }
        }
    };
}

rules! {
    /// A name means one thing.
    Names, "names", "the name `$` is used for # things",
        "Choose another name.";
    /// A field has at least one bit, and at most those of a container.
    FieldBits, "field-bits", "# bits; a field of @ has 1 to %",
        "Give it at least one bit, or split it.";
    /// A pipeline has few fields.
    Fields, "fields", "# fields; a pipeline has at most %",
        "Use a field again whose value is no longer needed.";
    /// A field is one of the pipeline's list.
    FieldDeclared, "field-declared", "field # is not in the list, which has % fields",
        "Take fields from this pipeline's `fields!`, and name the list: `fields: FIELDS`.";
    /// A field is as wide as the list says.
    FieldWidth, "field-width", "field `$` is used with # bits, and declared with %",
        "Take the field from this pipeline's `fields!`.";
    /// A register is one of the pipeline's list.
    RegisterDeclared, "register-declared", "register # is not in the list, which has % registers",
        "Take registers from this pipeline's `registers!`, and name the list: `registers: REGISTERS`.";
    /// A word of a register has 8, 16 or 32 bits.
    WordBits, "word-bits", "words of # bits",
        "Take 8, 16 or 32.";
    /// Actions run few different instructions of a register.
    Instructions, "instructions", "# instructions, the last one `$`; @ has %",
        "Merge two that differ in a constant: pass it in as a field. To merge adding with doing nothing, pass a field that is 0 for the latter.";
    /// Only one table has a register, so that a packet accesses it once.
    OneTable, "one-table", "# tables have this register, the last one `$`",
        "Make them one table, whose gateway or entries choose among actions: the register lies in one stage, and a packet passes a stage once.";
    /// A packet that the traffic manager drops has changed nothing: the ingress has no registers.
    IngressStateless, "ingress-stateless", "table `$` of the ingress has this register",
        "Move the table to the egress.";
    /// An instruction has few comparators.
    Comparators, "comparators", "# comparators; @ has %",
        "Make two instructions of it, and let the gateway choose by bits that an earlier stage has computed.";
    /// A comparator compares something.
    ComparatorOperands, "comparator-operands", "a comparator has neither memory nor an input",
        "Compare memory or an input.";
    /// A comparator's operands are masked.
    ComparatorMasks, "comparator-masks", "a comparator has a mask; @ has none",
        "Mask the field in an earlier stage; memory cannot be masked.";
    /// A mask and a large constant of one comparator are the same row of the register file.
    MaskAndConstant, "mask-and-constant", "the constant # and the mask differ, and both need the comparator's row of the register file",
        "Choose a small constant, or the mask's value.";
    /// A truth table asks for comparators that the instruction has.
    TruthTable, "truth-table", "a truth table asks for comparator #, and there are % (from 0)",
        "Name comparators that the instruction has.";
    /// Only a pair has a high word.
    HighWord, "high-word", "the high word is read, and entries have one word",
        "Declare the register as a pair.";
    /// An instruction has few ALUs for a word.
    Alus, "alus", "# ALUs write one word; @ has %",
        "Compute one case in an earlier stage, and pass the value in as a field.";
    /// An ALU reads memory at most once, and an input at most once.
    AluOperands, "alu-operands", "both operands of an ALU are $; it reads one",
        "Combine two inputs in an earlier stage. Output two words of memory, and compute in a later table or with another register.";
    /// An ALU has one constant.
    AluConstants, "alu-constants", "an ALU has two constants; it has room for one",
        "Compute with the constants before.";
    /// A constant fits its word or field.
    ConstantBits, "constant-bits", "the constant # does not fit; the largest is %",
        "Choose one that fits.";
    /// Instructions of a register share few large constants.
    LargeConstants, "large-constants", "# large constants and masks; @ has room for %",
        "Pass one in as a field, or choose small ones.";
    /// All actions hand a register's stateful ALU the same two fields: the crossbar has one place for each input.
    Inputs, "inputs", "two fields, the last one `$`, for one input of the register",
        "Let all actions name the same field for an input: merge two fields that no packet has both of, or take the other input.";
    /// An instruction reads the inputs that its action names.
    InputDeclared, "input-declared", "`$` reads an input for which the action names no field",
        "Name a field in `inputs`.";
    /// An instruction has few output words.
    Outputs, "outputs", "output word # (from 0); @ has %",
        "Output fewer values, or read the rest with another packet.";
    /// An output word has one value.
    OutputOnce, "output-once", "two values for one output word",
        "Take another output word.";
    /// An instruction outputs its comparators' result once.
    ResultOnce, "result-once", "the comparators' result leaves twice",
        "Keep one, and copy it in the action.";
    /// An operation reads an output word that the action's instruction has.
    OutputDeclared, "output-declared", "output word # is read, which the action's instruction does not have",
        "Let the instruction output it.";
    /// An entry or a gateway names an action of its table.
    ActionDeclared, "action-declared", "action # (from 0); the table has %",
        "Name an action of this table.";
    /// An action writes a field once.
    WriteOnce, "write-once", "field `$` is written twice",
        "All operations of an action happen at once: keep one.";
    /// An operation has at most one operand that is not a field.
    OperationOperands, "operation-operands", "neither operand of an operation is a field",
        "Copy one of them to a field, and compute in a later stage.";
    /// The second operand of a saturating subtraction is a field.
    SecondOperand, "second-operand", "the second operand of a saturating subtraction is no field",
        "Subtract without saturation, and match the highest bit in a later stage; or copy the operand to a field.";
    /// An operation reads action data that the table's entries have.
    DataDeclared, "data-declared", "# bits of action data; entries have %",
        "Declare more data bits for the table's entries.";
    /// An entry has few bits of action data.
    DataBits, "data-bits", "# bits of action data; an entry has at most %",
        "Split the table.";
    /// A hash has as many bits as its checksum, at most.
    HashBits, "hash-bits", "a hash of # bits; the checksum has %",
        "Take fewer bits, or a checksum with more.";
    /// A match is possible: its value has no bits but those that count.
    MatchBits, "match-bits", "a match of field `$` with # can never hold",
        "Choose a value within the mask and the field.";
    /// A gateway has few rows.
    GatewayRows, "gateway-rows", "# rows; @ has %",
        "Take a `Lookup::Ternary`, or split the decision over two stages.";
    /// A gateway matches few bits.
    GatewayBits, "gateway-bits", "# bits of fields are matched; @ has %",
        "Take a `Lookup::Ternary`, or compute a flag in an earlier stage.";
    /// A key has at least one field, and few.
    KeyFields, "key-fields", "# fields in a key; a key has 1 to %",
        "Name one field at least, and drop what does not tell entries apart.";
    /// A table or register has entries.
    Entries, "entries", "no entries",
        "Declare one entry at least.";
    /// A parser goes to states that it has.
    ParserState, "parser-state", "state # (from 0); the parser has %",
        "Name a state of this parser.";
    /// There are few mirror sessions.
    Mirrors, "mirrors", "# mirror sessions; @ has %",
        "Let one session carry more fields.";
    /// An explicit pipeline stage lies behind those that it depends on.
    Dependency, "dependency", "in stage #; because of table `$`, stage % is the earliest",
        "A table sees what an earlier stage has written: choose a later stage, or let the checker choose.";
    /// Tables fit the pipeline stages.
    Stages, "stages", "# stages, the last one for `$`; @ has %",
        "Shorten the longest chain of tables that read what others write.";
    /// A register fits the memory that one may take.
    RegisterMemory, "register-memory", "# SRAM blocks; a register of @ has %",
        "Take fewer entries or narrower words, or split the register.";
    /// All fields fit the packet header vector.
    PhvBits, "phv-bits", "# bits of fields; @ has %",
        "Use a field again whose value is no longer needed.";
    /// What the tables of a pipeline stage take together is there.
    StageBudget, "stage-budget", "# $ in its stage; @ has %",
        "Move a table with an explicit stage, or let the checker choose stages.";
}

/// Where a rule is violated: the names that lead there, from the outermost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place<'p> {
    names: [&'p str; 3],
}

impl<'p> Place<'p> {
    const fn new(outer: &'p str) -> Place<'p> {
        Place { names: [outer, "", ""] }
    }

    const fn then(self, inner: &'p str) -> Place<'p> {
        let [outer, middle, _] = self.names;
        if middle.is_empty() {
            Place { names: [outer, inner, ""] }
        } else {
            Place { names: [outer, middle, inner] }
        }
    }
}

impl fmt::Display for Place<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.names[0])?;
        self.names[1..]
            .iter()
            .filter(|name| !name.is_empty())
            .try_for_each(|name| write!(f, ".{name}"))
    }
}

/// A violation of a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Violation<'p> {
    /// The rule.
    pub rule: Rule,
    /// Where it is violated.
    pub place: Place<'p>,
    /// What was found there.
    pub found: i64,
    /// The most, or what would be right.
    pub limit: i64,
    /// Where the limit is published; empty if it follows from the pipeline itself.
    pub source: &'static str,
    /// The device.
    pub device: &'static str,
    /// What else to know: the other table, field or unit; may be empty.
    pub detail: &'p str,
}

impl Violation<'_> {
    const fn text(&self) -> Text {
        let mut text = Text::EMPTY.and(self.place.names[0]);
        if !self.place.names[1].is_empty() {
            text = text.and(".").and(self.place.names[1]);
        }
        if !self.place.names[2].is_empty() {
            text = text.and(".").and(self.place.names[2]);
        }
        text = text.and(": ");
        let says = self.rule.says().as_bytes();
        let mut at = 0;
        while at < says.len() {
            text = match says[at] {
                b'#' => text.number(self.found),
                b'%' => text.number(self.limit),
                b'@' => text.and(self.device),
                b'$' => text.and(self.detail),
                byte => text.byte(byte),
            };
            at += 1;
        }
        text = text.and(" [").and(self.rule.name());
        if !self.source.is_empty() {
            text = text.and("; ").and(self.source);
        }
        text.and("]. ").and(self.rule.hint())
    }
}

impl fmt::Display for Violation<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.text().fmt(f)
    }
}

/// Violations, in the order of the pipeline.
#[derive(Clone, Copy, Debug)]
pub struct Violations<'p> {
    kept: [Option<Violation<'p>>; KEPT],
    count: usize,
}

impl<'p> Violations<'p> {
    const NONE: Violations<'static> = Violations { kept: [None; KEPT], count: 0 };

    const fn report(&mut self, violation: Violation<'p>) {
        if self.count < KEPT {
            self.kept[self.count] = Some(violation);
        }
        self.count += 1;
    }

    /// The number of all violations.
    pub const fn count(&self) -> usize {
        self.count
    }

    /// The first violations, at most 32.
    pub fn iter(&self) -> impl Iterator<Item = &Violation<'p>> {
        self.kept.iter().flatten()
    }
}

impl<'p> Pipeline<'p> {
    /// Checks the shape of everything for itself. [`place`] checks the rest.
    pub const fn check(&self, device: &Device) -> Violations<'_> {
        let mut violations = Violations::NONE;
        shape::check(self, device, &mut violations);
        violations
    }

    /// Panics with the first violation of the pipeline's shape; [`Pipeline::check`] has all. [`Placement::must_fit`] is the same for
    /// the stages. In a constant, the compiler prints the violation:
    ///
    /// ```compile_fail
    /// use wave_rmt::register::{Operand, Operation, Word};
    /// use wave_rmt::{Access, Action, Alu, Instruction, Pipeline, Register, Table, devices::TOFINO2};
    ///
    /// wave_rmt::fields! { FLOW = flow: 16 }
    /// wave_rmt::registers! { SUM = Register { name: "sum", bits: 32, is_pair: true, entries: 1024 } }
    /// const ADD: Instruction = Instruction {
    ///     name: "add",
    ///     // Two words of memory in one ALU.
    ///     alus: &[Alu::low(Operation::Add, Operand::Memory(Word::Low), Operand::Memory(Word::High))],
    ///     ..Instruction::NOTHING
    /// };
    /// const COUNT: Pipeline = Pipeline {
    ///     fields: FIELDS,
    ///     registers: REGISTERS,
    ///     egress: &[Table {
    ///         name: "count",
    ///         actions: &[Action {
    ///             name: "add",
    ///             access: Some(Access { register: SUM, instruction: &ADD, index: FLOW, inputs: [None; 2] }),
    ///             ops: &[],
    ///         }],
    ///         ..Table::NOTHING
    ///     }],
    ///     ..Pipeline::NOTHING
    /// };
    /// const _: () = COUNT.must_fit(&TOFINO2);
    /// ```
    pub const fn must_fit(&self, device: &Device) {
        if let Some(violation) = &self.check(device).kept[0] {
            panic!("{}", violation.text().as_str());
        }
    }
}
