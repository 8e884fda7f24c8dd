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

/// Declares the rules: what each demands, its name in messages and `--json`, what a violation counts, and what to do about it.
macro_rules! rules {
    ($($(#[$meta:meta])* $rule:ident, $name:literal, $counts:literal, $hint:literal;)*) => {
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

            /// What a violation counts.
            const fn counts(self) -> &'static str {
                match self {
                    $(Rule::$rule => $counts,)*
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
    /// A name is used twice for things of one kind.
    Names, "names", "things with this name",
        "Choose another name.";
    /// A field is as wide as a container at most.
    FieldBits, "field-bits", "bits",
        "Split the field.";
    /// A field is one of the pipeline's list, with that width.
    FieldDeclared, "field-declared", "as the field's index or width",
        "Take the field from this pipeline's `fields!`.";
    /// A register is one of the pipeline's list.
    RegisterDeclared, "register-declared", "as the register's index",
        "Take the register from this pipeline's `registers!`.";
    /// A word of a register has 8, 16 or 32 bits.
    WordBits, "word-bits", "bits in a word",
        "Take 8, 16 or 32.";
    /// Actions run few different instructions of a register.
    Instructions, "instructions", "instructions",
        "Merge two of them: a comparator with a field that is 0 tells cases apart within one instruction.";
    /// Only one table has a register, so that a packet accesses it once.
    OneTable, "one-table", "tables with this register",
        "Make them one table, whose gateway or entries choose among actions: its memory lies in one stage, and a packet passes a stage once.";
    /// A packet that the traffic manager drops has changed nothing: the ingress has no registers.
    IngressStateless, "ingress-stateless", "registers in the ingress",
        "Move the table to the egress.";
    /// An instruction has few comparators.
    Comparators, "comparators", "comparators",
        "Compute one comparison in a stage before, and hand its sign in as a field.";
    /// A comparator compares something.
    ComparatorOperands, "comparator-operands", "operands of a comparator",
        "Compare memory or a field.";
    /// A comparator's operands are masked.
    ComparatorMasks, "comparator-masks", "masks of comparators",
        "Mask the field in a stage before; memory cannot be masked.";
    /// A mask and a large constant of one comparator are the same row of the register file.
    MaskAndConstant, "mask-and-constant", "different values for one row of the register file",
        "Choose a constant within the instruction's range, or the mask's value.";
    /// A truth table asks for comparators that the instruction has.
    TruthTable, "truth-table", "as a comparator in a truth table",
        "Name comparators that the instruction has.";
    /// Only a pair has a high word.
    HighWord, "high-word", "reads of a high word",
        "Declare the register as a pair.";
    /// An instruction has few ALUs for a word.
    Alus, "alus", "ALUs for one word",
        "Compute one case in a stage before, and hand the value in as a field.";
    /// An ALU reads memory at most once, and a packet field at most once.
    AluOperands, "alu-operands", "operands of the same kind",
        "Copy one of them to a field in a stage before: an ALU has one way to memory and one to the fields.";
    /// An ALU has one constant.
    AluConstants, "alu-constants", "constants in one ALU",
        "Compute with the constants before.";
    /// A constant fits the word.
    ConstantBits, "constant-bits", "as a constant",
        "Choose one that the word can hold.";
    /// Instructions of a register share few large constants.
    LargeConstants, "large-constants", "large constants",
        "Hand one in as a field, or choose small ones.";
    /// A stateful ALU reads few bits of packet fields.
    InputBits, "input-bits", "bits of packet fields",
        "Take narrower words, or one input.";
    /// An instruction reads the packet fields that its action hands in.
    InputDeclared, "input-declared", "inputs that the action does not hand in",
        "Name a field for the input.";
    /// An instruction has few output words.
    Outputs, "outputs", "as an output word",
        "Read one value less, or read it again in another packet.";
    /// An output word has one value.
    OutputOnce, "output-once", "values for one output word",
        "Take another output word, or truth tables that exclude each other.";
    /// An operation reads an output word that the action's instruction has.
    OutputDeclared, "output-declared", "as an output word that the instruction lacks",
        "Let the instruction output it.";
    /// An entry or a gateway names an action of its table.
    ActionDeclared, "action-declared", "as an action's index",
        "Name an action of this table.";
    /// An action writes a field once.
    WriteOnce, "write-once", "writes of one field",
        "All operations of an action happen at once: keep one.";
    /// An operation has at most one operand that is not a field.
    OperationOperands, "operation-operands", "operands that are no fields",
        "Copy one of them to a field in a stage before.";
    /// An operation reads action data that the table's entries have.
    DataDeclared, "data-declared", "bits of action data",
        "Declare more data bits for the table's entries.";
    /// A gateway has few rows.
    GatewayRows, "gateway-rows", "rows",
        "Take a `Lookup::Fixed`, or split the decision over two stages.";
    /// A gateway matches few bits.
    GatewayBits, "gateway-bits", "bits",
        "Take a `Lookup::Fixed`, or compute a flag in a stage before.";
    /// A key has at least one field, and few.
    KeyFields, "key-fields", "fields in the key",
        "Name one field at least, and drop what does not tell entries apart.";
    /// A table or register has entries.
    Entries, "entries", "entries",
        "Declare one entry at least.";
    /// A parser goes to states that it has.
    ParserState, "parser-state", "as a parser state's index",
        "Name a state of this parser.";
    /// There are few mirror sessions.
    Mirrors, "mirrors", "mirror sessions",
        "Let one session carry more fields.";
    /// An explicit pipeline stage lies behind those that it depends on.
    Dependency, "dependency", "as a stage",
        "A table sees what an earlier stage has written: choose a later stage, or let the checker choose.";
    /// Tables fit the pipeline stages.
    Stages, "stages", "stages",
        "Shorten the longest chain of tables that read what others write.";
    /// A register fits the memory that one may take.
    RegisterMemory, "register-memory", "SRAM blocks",
        "Take fewer entries or narrower words, or split the register.";
    /// All fields fit the packet header vector.
    PhvBits, "phv-bits", "bits of fields",
        "Use a field again whose value is no longer needed.";
    /// What the tables of a pipeline stage take together is there.
    StageBudget, "stage-budget", "units",
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
        text = text.and(": ").number(self.found).and(" ").and(self.rule.counts());
        if !self.detail.is_empty() {
            text = text.and(" (").and(self.detail).and(")");
        }
        text = text.and("; ");
        if self.source.is_empty() {
            text = text.and("the limit is ").number(self.limit);
        } else {
            text = text.and(self.device).and(" has ").number(self.limit);
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

    /// Panics with the first violation of the pipeline's shape. In a constant, the compiler prints it:
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
