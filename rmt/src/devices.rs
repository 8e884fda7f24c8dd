//! Limits of chips, each with the place where it is published.
//!
//! Sources are files of p4lang/p4c, the public compiler and assembler for Tofino, at commit 34b86e9, below `backends/tofino/`, with
//! the name of the constant or function.

/// A limit and its source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    /// The largest number that fits.
    pub most: u32,
    /// Where it is published.
    pub source: &'static str,
}

/// A range of constants that fit an instruction, and its source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    /// The smallest.
    pub least: i64,
    /// The largest.
    pub most: i64,
    /// Where it is published.
    pub source: &'static str,
}

/// A chip.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Device {
    /// Name, as `--device` takes it.
    pub name: &'static str,
    /// Pipeline stages, which ingress and egress share.
    pub stages: Limit,
    /// Instructions of a stateful ALU.
    pub instructions: Limit,
    /// Comparators of an instruction.
    pub comparators: Limit,
    /// Masks of comparators' operands: 1 if there are any.
    pub comparator_masks: Limit,
    /// Constants that a comparator has in its instruction; others take a row of the register file.
    pub comparator_constants: Range,
    /// ALUs of an instruction for one word.
    pub alus: Limit,
    /// Constants that an ALU has in its instruction; others take a row of the register file.
    pub alu_constants: Range,
    /// Rows of a stateful ALU's file of large constants, which its instructions share.
    pub large_constants: Limit,
    /// Output words of an instruction.
    pub outputs: Limit,
    /// Rows of a gateway.
    pub gateway_rows: Limit,
    /// Bits that a gateway matches.
    pub gateway_bits: Limit,
    /// Bits of a field: those of the largest container.
    pub field_bits: Limit,
    /// Mirror sessions' kinds in the egress.
    pub mirrors: Limit,
    /// Bits of all fields: those of all containers.
    pub phv_bits: Limit,
    /// Logical tables of a stage.
    pub tables: Limit,
    /// Stateful ALUs of a stage.
    pub stateful_alus: Limit,
    /// SRAM blocks of a stage, of 1,024 words of 128 bits.
    pub srams: Limit,
    /// SRAM blocks that one register may take, with its spare one.
    pub register_srams: Limit,
    /// Map RAM blocks of a stage.
    pub map_rams: Limit,
    /// TCAM blocks of a stage, of 512 words of 44 bits.
    pub tcams: Limit,
    /// Gateways of a stage.
    pub gateways: Limit,
    /// VLIW instructions of a stage: actions.
    pub vliw: Limit,
    /// Bytes of the crossbar to exact tables, gateways and stateful ALUs, of a stage.
    pub exact_bytes: Limit,
    /// Bytes of the crossbar to ternary tables, of a stage.
    pub ternary_bytes: Limit,
    /// Hashes of 16 bits that a stage distributes to addresses and fields.
    pub hashes: Limit,
}

/// The devices.
pub const DEVICES: &[Device] = &[TOFINO1, TOFINO2, TOFINO2M];

const fn limit(most: u32, source: &'static str) -> Limit {
    Limit { most, source }
}

/// Intel Tofino 2.
pub const TOFINO2: Device = Device {
    name: "tofino2",
    stages: limit(20, "bf-p4c/specs/device.h, JBayDevice::getNumStages"),
    comparators: limit(4, "bf-p4c/specs/device.cpp, JBayDevice::getStatefulAluSpec, CmpUnits"),
    comparator_masks: limit(1, "bf-p4c/specs/device.cpp, JBayDevice::getStatefulAluSpec, CmpMask"),
    comparator_constants: Range {
        least: -32,
        most: 31,
        source: "bf-asm/target.h, JBay, STATEFUL_CMP_CONST_MIN and _MAX",
    },
    outputs: limit(4, "bf-p4c/specs/device.cpp, JBayDevice::getStatefulAluSpec, OutputWords"),
    mirrors: limit(
        15,
        "bf-p4c/specs/device.h, JBayDevice::getMaxCloneId: 16, of which 0 is no mirror",
    ),
    phv_bits: limit(
        5120,
        "bf-p4c/specs/phv_spec.cpp: 80 containers of 8 bits, 120 of 16, 80 of 32, of all kinds",
    ),
    ..TOFINO1
};

/// Intel Tofino 2 in its variant with fewer stages.
pub const TOFINO2M: Device = Device {
    name: "tofino2m",
    stages: limit(12, "bf-p4c/specs/device.h, JBayMDevice::getNumStages"),
    ..TOFINO2
};

/// Intel Tofino.
pub const TOFINO1: Device = Device {
    name: "tofino1",
    stages: limit(12, "bf-p4c/specs/device.h, TofinoDevice::getNumStages"),
    instructions: limit(4, "bf-p4c/specs/device.cpp, getStatefulAluSpec, MaxInstructions"),
    comparators: limit(2, "bf-p4c/specs/device.cpp, TofinoDevice::getStatefulAluSpec, CmpUnits"),
    comparator_masks: limit(
        0,
        "bf-p4c/specs/device.cpp, TofinoDevice::getStatefulAluSpec, CmpMask",
    ),
    comparator_constants: Range {
        least: -8,
        most: 7,
        source: "bf-asm/target.h, Tofino, STATEFUL_CMP_CONST_MIN and _MAX",
    },
    alus: limit(2, "bf-asm/salu_inst.cpp, salu_slot_use: ALU1 and ALU2 of each word"),
    alu_constants: Range {
        least: -8,
        most: 7,
        source: "bf-p4c/specs/device.cpp, getStatefulAluSpec, MinInstructionConstValue and Max",
    },
    large_constants: limit(4, "bf-p4c/specs/device.cpp, getStatefulAluSpec, MaxRegfileRows"),
    outputs: limit(1, "bf-p4c/specs/device.cpp, TofinoDevice::getStatefulAluSpec, OutputWords"),
    gateway_rows: limit(4, "bf-p4c/specs/device.cpp, getGatewaySpec, MaxRows"),
    gateway_bits: limit(44, "bf-p4c/specs/device.cpp, getGatewaySpec, PhvBytes * 8 + HashBits"),
    field_bits: limit(32, "bf-p4c/specs/phv_spec.cpp: containers of 8, 16 and 32 bits"),
    mirrors: limit(
        7,
        "bf-p4c/specs/device.h, TofinoDevice::getMaxCloneId: 8, of which 0 is no mirror",
    ),
    phv_bits: limit(4096, "bf-p4c/specs/phv_spec.cpp: 64 containers of 8 bits, 96 of 16, 64 of 32"),
    tables: limit(16, "bf-p4c/specs/device.h, getNumLogTablesPerStage"),
    stateful_alus: limit(4, "bf-p4c/mau/resource_estimate.h, MAX_METER_ALUS"),
    srams: limit(80, "bf-p4c/mau/mau_spec.h, StageUse: rows and columns of SRAM"),
    register_srams: limit(
        24,
        "bf-p4c/mau/resource_estimate.cpp, RegisterPerWord: half of a stage's map RAMs, the spare block among them",
    ),
    map_rams: limit(48, "bf-p4c/mau/resource_estimate.cpp: 8 rows of 6 map RAMs"),
    tcams: limit(24, "bf-p4c/mau/mau_spec.h, Tofino_tcam_rows * Tofino_tcam_columns"),
    gateways: limit(16, "bf-asm/target.h, GATEWAY_ROWS: two in each of 8 rows"),
    vliw: limit(32, "bf-p4c/mau/mau_spec.cpp, TofinoIMemSpec::rows"),
    exact_bytes: limit(128, "bf-p4c/mau/mau_spec.cpp, exactMatchTotalBytes"),
    ternary_bytes: limit(66, "bf-p4c/mau/mau_spec.cpp, ternaryMatchTotalBytes"),
    hashes: limit(6, "bf-p4c/mau/mau_spec.cpp, hashDistUnits * hashDistSlices"),
};
