//! Policies as text: `NAME:KEY=VALUE,KEY=VALUE`, where a value is a number, numbers per class
//! (`50/10000`, the last one also for every higher class), a span of numbers (`5..10`), a share
//! (`0.3`), or a word from a fixed set (`core`). A list of policies is a [`Policies`].

use alloc::boxed::Box;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::ops::RangeInclusive;

use crate::clock::Nanos;
use crate::layout::Config;

/// Number of classes that a policy tells apart. Higher class numbers share the last one.
pub const CLASSES_MAX: usize = 16;

/// A value for each class of subjects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PerClass<T>([T; CLASSES_MAX]);

impl<T: Copy> PerClass<T> {
    /// The values of the first classes; the last is also that of every higher class. Panics if there
    /// is none, or more than [`CLASSES_MAX`].
    pub fn new(values: &[T]) -> PerClass<T> {
        assert!(values.len() <= CLASSES_MAX, "at most {CLASSES_MAX} classes are told apart");
        PerClass(core::array::from_fn(|class| values[class.min(values.len() - 1)]))
    }

    /// The value for this class; classes beyond the last share the last one's.
    #[inline]
    pub fn of(&self, class: u16) -> T {
        self.0[class_index(class)]
    }
}

/// The index of a class among those that are told apart.
#[inline]
pub fn class_index(class: u16) -> usize {
    usize::from(class).min(CLASSES_MAX - 1)
}

/// One setting that a policy takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Setting {
    /// Its name, with the unit last.
    pub key: &'static str,
    /// What it means, for help texts.
    pub help: &'static str,
    /// The value if none is given.
    pub default: &'static str,
    /// How many numbers its value has at most, divided by `/`: one per class.
    pub numbers: usize,
    /// Whether its value is a span, `LEAST..MOST`, or one number for both.
    pub is_span: bool,
    /// Smallest and largest value of each number, both allowed.
    pub range: (u64, u64),
    /// Whether its value is a share instead, above 0 and below 1.
    pub is_share: bool,
    /// The words that are valid values; empty for a setting made of numbers.
    pub words: &'static [&'static str],
}

impl Setting {
    const ANY: Setting = Setting {
        key: "",
        help: "",
        default: "",
        numbers: 1,
        is_span: false,
        range: (1, 0),
        is_share: false,
        words: &[],
    };

    /// A setting that is a number within a range.
    pub const fn number(
        key: &'static str,
        default: &'static str,
        range: RangeInclusive<u64>,
        help: &'static str,
    ) -> Setting {
        Setting { key, help, default, range: (*range.start(), *range.end()), ..Setting::ANY }
    }

    /// Declares a setting with one number per class.
    pub const fn per_class(
        key: &'static str,
        default: &'static str,
        range: RangeInclusive<u64>,
        help: &'static str,
    ) -> Setting {
        Setting { numbers: CLASSES_MAX, ..Setting::number(key, default, range, help) }
    }

    /// A setting that is a span of time.
    pub const fn span(
        key: &'static str,
        default: &'static str,
        range: RangeInclusive<u64>,
        help: &'static str,
    ) -> Setting {
        Setting { is_span: true, ..Setting::number(key, default, range, help) }
    }

    /// A setting that is a share, from 0 to 1.
    pub const fn share(key: &'static str, default: &'static str, help: &'static str) -> Setting {
        Setting { key, help, default, is_share: true, ..Setting::ANY }
    }

    /// Declares a setting whose value is one of `words`; the first is the default.
    pub const fn one_of(
        key: &'static str,
        words: &'static [&'static str],
        help: &'static str,
    ) -> Setting {
        Setting { key, help, default: words[0], words, ..Setting::ANY }
    }

    /// Whether the default is a valid value, or a description of one, such as `as many as cores`.
    pub fn has_valid_default(&self) -> bool {
        let is_value = |byte: u8| byte.is_ascii_digit() || matches!(byte, b'/' | b'.');
        let is_described =
            !self.is_share && self.words.is_empty() && !self.default.bytes().all(is_value);
        is_described || self.check(self.default)
    }

    fn divider(&self) -> &'static str {
        if self.is_span { ".." } else { "/" }
    }

    /// Whether a value is allowed.
    fn check(&self, value: &str) -> bool {
        if !self.words.is_empty() {
            return self.words.contains(&value);
        }
        if self.is_share {
            return share(value).is_some();
        }
        let (least, most) = self.range;
        let most_numbers = if self.is_span { 2 } else { self.numbers };
        let mut numbers = value.split(self.divider());
        let fits =
            |text: &str| matches!(number(text), Some(number) if (least..=most).contains(&number));
        let is_span = || match value.split_once("..") {
            Some((least, most)) => number(least) <= number(most),
            None => true,
        };
        numbers.clone().count() <= most_numbers && numbers.all(fits) && (!self.is_span || is_span())
    }
}

impl core::fmt::Display for Setting {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let ((least, most), key) = (self.range, self.key);
        if !self.words.is_empty() {
            write!(f, "{key}=")?;
            for (at, word) in self.words.iter().enumerate() {
                write!(f, "{}{word}", if at == 0 { "" } else { "|" })?;
            }
            return Ok(());
        }
        if self.is_share {
            return write!(f, "{key}=SHARE, above 0 and below 1, such as 0.25");
        }
        match (self.is_span, self.numbers) {
            (true, _) => write!(f, "{key}=LEAST..MOST, each {least} to {most}"),
            (false, 1) => write!(f, "{key}=N, {least} to {most}"),
            (false, count) => {
                write!(f, "{key}=N/N/..., at most {count} of them, each {least} to {most}")
            }
        }
    }
}

/// Only digits: no sign, no space.
fn number(text: &str) -> Option<u64> {
    if text.bytes().all(|byte| byte.is_ascii_digit()) { text.parse().ok() } else { None }
}

/// Digits and a point: no sign, no exponent.
fn share(text: &str) -> Option<f32> {
    let plain = text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    let share: f32 = if plain { text.parse().ok()? } else { return None };
    (share > 0.0 && share < 1.0).then_some(share)
}

/// Settings that are not valid: their author is at fault.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages name the fields")]
pub enum SettingError {
    /// The policy has no setting with this name.
    #[error("it has no setting `{key}`; it takes {}", List(allowed))]
    Unknown { key: String, allowed: &'static [Setting] },
    /// The text has no `KEY=VALUE`.
    #[error("`{text}` is not a setting: write KEY=VALUE, and commas between several")]
    NoValue { text: String },
    /// The text sets the same key twice.
    #[error("`{}` is set twice", setting.key)]
    Twice { setting: &'static Setting },
    /// The value is not allowed.
    #[error("`{value}` is not a valid value for `{}`: write {setting}", setting.key)]
    Value { setting: &'static Setting, value: String },
    /// The setting asks for more of something than this host has.
    #[error("`{key}` is {number}, but there are only {most} {of}")]
    Beyond { key: &'static str, number: u64, most: u64, of: &'static str },
    /// Two settings that contradict each other.
    #[error("`{low}` is {least}, but must not exceed `{high}`, which is {most}")]
    Order { low: &'static str, least: u64, high: &'static str, most: u64 },
}

struct List<'a>(&'a [Setting]);

impl core::fmt::Display for List<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        for (at, setting) in self.0.iter().enumerate() {
            let before = if at == 0 { "" } else { "; " };
            write!(f, "{before}{setting} (default {})", setting.default)?;
        }
        if self.0.is_empty() { f.write_str("none") } else { Ok(()) }
    }
}

/// A policy's settings: checked text, and defaults for the rest.
#[derive(Clone, Copy, Debug)]
pub struct Settings<'a> {
    text: &'a str,
    allowed: &'static [Setting],
}

impl<'a> Settings<'a> {
    /// Checks every setting of `text`, the part after the colon.
    pub fn parse(text: &'a str, allowed: &'static [Setting]) -> Result<Settings<'a>, SettingError> {
        for (at, pair) in pairs(text).enumerate() {
            let Some((key, value)) = pair.split_once('=') else {
                return Err(SettingError::NoValue { text: pair.to_string() });
            };
            let Some(setting) = allowed.iter().find(|setting| setting.key == key) else {
                return Err(SettingError::Unknown { key: key.to_string(), allowed });
            };
            if pairs(text).take(at).any(|earlier| earlier.split('=').next() == Some(key)) {
                return Err(SettingError::Twice { setting });
            }
            if !setting.check(value) {
                return Err(SettingError::Value { setting, value: value.to_string() });
            }
        }
        Ok(Settings { text, allowed })
    }

    /// Settings with all values at their defaults.
    pub fn defaults(allowed: &'static [Setting]) -> Settings<'static> {
        Settings { text: "", allowed }
    }

    fn setting(&self, key: &str) -> (&'static Setting, Option<&'a str>) {
        let setting = self.allowed.iter().find(|setting| setting.key == key);
        let setting = setting.expect("a policy asks only for settings that it declares");
        let given = pairs(self.text).find_map(|pair| {
            pair.split_once('=').filter(|(given, _)| *given == key).map(|(_, value)| value)
        });
        (setting, given)
    }

    fn value(&self, key: &str) -> (&'static Setting, &'a str) {
        let (setting, given) = self.setting(key);
        (setting, given.unwrap_or(setting.default))
    }

    /// The word that was chosen.
    pub fn choice(&self, key: &str) -> &'a str {
        self.value(key).1
    }

    /// The least and the most of a span.
    pub fn span(&self, key: &str) -> (u64, u64) {
        let (setting, value) = self.value(key);
        let mut numbers = value.split(setting.divider()).map(checked);
        let least = numbers.next().unwrap_or_default();
        (least, numbers.next().unwrap_or(least))
    }

    /// The value of a setting that is a number.
    pub fn number(&self, key: &str) -> u64 {
        self.span(key).0
    }

    /// A number that the user gave, for a setting whose default is described in words.
    pub fn given(&self, key: &str) -> Option<u64> {
        self.setting(key).1.map(checked)
    }

    /// Two numbers, the first at most the second.
    ///
    /// # Errors
    /// The first number is greater than the second.
    pub fn ascending(&self, low: &str, high: &str) -> Result<(u64, u64), SettingError> {
        let (least, most) = (self.number(low), self.number(high));
        if least <= most {
            return Ok((least, most));
        }
        let (low, high) = (self.setting(low).0.key, self.setting(high).0.key);
        Err(SettingError::Order { low, least, high, most })
    }

    /// The value of a setting that is a share.
    pub fn share(&self, key: &str) -> f32 {
        share(self.value(key).1).expect(CHECKED)
    }

    /// The numbers of a setting declared by [`Setting::per_class`].
    pub fn per_class(&self, key: &str) -> PerClass<u64> {
        let (setting, value) = self.value(key);
        let mut numbers = [0; CLASSES_MAX];
        let mut count = 0;
        for text in value.split(setting.divider()) {
            numbers[count] = checked(text);
            count += 1;
        }
        PerClass::new(&numbers[..count])
    }

    /// A time for each class, from microseconds.
    pub fn micros_per_class(&self, key: &str) -> PerClass<Nanos> {
        let micros = self.per_class(key);
        PerClass(micros.0.map(Nanos::from_micros))
    }
}

fn pairs(text: &str) -> impl Iterator<Item = &str> {
    text.split(',').filter(move |_| !text.is_empty())
}

fn checked(text: &str) -> u64 {
    number(text).expect(CHECKED)
}

const CHECKED: &str = "settings are checked when they are parsed";

/// The description of a policy in a list.
#[derive(Clone, Copy, Debug)]
pub struct Known {
    /// Name of the policy, as users write it.
    pub name: &'static str,
    /// What it does, in a line, for help texts.
    pub about: &'static str,
    /// The settings that it takes.
    pub settings: &'static [Setting],
}

impl Known {
    /// The settings in a text that begins with the policy's name.
    ///
    /// # Errors
    /// A setting is unknown, or its value is not valid; the error says what is allowed.
    pub fn parse<'a>(&self, text: &'a str) -> Result<Settings<'a>, PolicyError> {
        let given = text.split_once(':').map_or("", |(_, given)| given);
        let settings = Settings::parse(given, self.settings);
        settings.map_err(|error| PolicyError::Setting { policy: self.name, error })
    }
}

/// Makes a policy for an enclave of this configuration.
pub type Make<T> = fn(&Config, &Settings<'_>) -> Result<Box<T>, SettingError>;

/// The policies of a subsystem, or a user's own, each with its constructor.
pub struct Policies<T: ?Sized + 'static>(pub &'static [(Known, Make<T>)]);

impl<T: ?Sized> core::fmt::Debug for Policies<T> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_list().entries(self.0.iter().map(|(known, _)| known.name)).finish()
    }
}

/// The descriptions of these policies, without their constructors.
pub const fn known<T: ?Sized, const COUNT: usize>(shipped: &Policies<T>) -> [Known; COUNT] {
    assert!(shipped.0.len() == COUNT);
    let mut known = [Known { name: "", about: "", settings: &[] }; COUNT];
    let mut at = 0;
    while at < COUNT {
        known[at] = shipped.0[at].0;
        at += 1;
    }
    known
}

/// The names of these policies.
pub const fn names<const COUNT: usize>(known: &[Known; COUNT]) -> [&'static str; COUNT] {
    let mut names = [""; COUNT];
    let mut at = 0;
    while at < COUNT {
        names[at] = known[at].name;
        at += 1;
    }
    names
}

/// A policy's text that is not valid: its author is at fault.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages name the fields")]
pub enum PolicyError {
    /// No policy of this name is shipped.
    #[error("there is no policy `{name}`; shipped policies: {}", .shipped.join(", "))]
    Unknown { name: String, shipped: Vec<&'static str> },
    /// The policy's settings are not valid.
    #[error("policy `{policy}`: {error}")]
    Setting { policy: &'static str, error: SettingError },
    /// The policy's process has no such policy, and says why.
    #[error("{why}")]
    Elsewhere { why: String },
}

impl<T: ?Sized> Policies<T> {
    fn entry<'a>(
        &self,
        text: &'a str,
    ) -> Result<(&'static str, Settings<'a>, Make<T>), PolicyError> {
        let name = text.split_once(':').map_or(text, |(name, _)| name);
        let Some((known, make)) = self.0.iter().find(|(known, _)| known.name == name) else {
            let shipped = self.0.iter().map(|(known, _)| known.name).collect();
            return Err(PolicyError::Unknown { name: name.to_string(), shipped });
        };
        known.parse(text).map(|settings| (known.name, settings, *make))
    }

    /// Splits a text into the policy's name and its settings.
    ///
    /// # Errors
    /// The policy or a setting is unknown, or a value is not valid; the error says what is allowed.
    pub fn parse<'a>(&self, text: &'a str) -> Result<(&'static str, Settings<'a>), PolicyError> {
        self.entry(text).map(|(name, settings, _)| (name, settings))
    }

    /// Makes the policy of this text (a name and settings), for an enclave of this configuration.
    ///
    /// # Errors
    /// As [`Policies::parse`].
    pub fn make(&self, text: &str, config: &Config) -> Result<Box<T>, PolicyError> {
        let (policy, settings, make) = self.entry(text)?;
        make(config, &settings).map_err(|error| PolicyError::Setting { policy, error })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    static ALLOWED: [Setting; 5] = [
        Setting::number("slice_us", "30", 1..=1_000_000, ""),
        Setting::per_class("slo_us", "50/10000", 1..=1000, ""),
        Setting::span("quantum_ms", "5..10", 1..=100, ""),
        Setting::one_of("timer", &["agent", "core"], ""),
        Setting::share("hot", "0.25", ""),
    ];

    #[test]
    fn missing_settings_take_their_defaults() {
        let settings = Settings::parse("slo_us=1/2/3", &ALLOWED).unwrap();
        assert_eq!(settings.number("slice_us"), 30);
        assert_eq!(settings.span("quantum_ms"), (5, 10));
        assert_eq!(settings.choice("timer"), "agent");
        assert_eq!(Settings::parse("timer=core", &ALLOWED).unwrap().choice("timer"), "core");
        let slo = settings.per_class("slo_us");
        assert_eq!([0, 1, 2, 3, u16::MAX].map(|class| slo.of(class)), [1, 2, 3, 3, 3]);
        assert_eq!(Settings::defaults(&ALLOWED).per_class("slo_us").of(9), 10_000);
        assert_eq!(settings.share("hot"), 0.25);
        assert_eq!(Settings::parse("hot=.5", &ALLOWED).unwrap().share("hot"), 0.5);
    }

    #[test]
    fn a_single_number_sets_both_ends_of_a_span() {
        let settings = Settings::parse("quantum_ms=7,slice_us=20", &ALLOWED).unwrap();
        assert_eq!((settings.span("quantum_ms"), settings.number("slice_us")), ((7, 7), 20));
        let given = |text| Settings::parse(text, &ALLOWED).unwrap().given("slice_us");
        assert_eq!((given("slice_us=20"), given("timer=core")), (Some(20), None));
    }

    #[test]
    fn a_bad_setting_is_refused_with_the_allowed_values() {
        for (text, expected) in [
            (
                "slice=3",
                "it has no setting `slice`; it takes slice_us=N, 1 to 1000000 (default 30); \
                 slo_us=N/N/..., at most 16 of them, each 1 to 1000 (default 50/10000); \
                 quantum_ms=LEAST..MOST, each 1 to 100 (default 5..10); \
                 timer=agent|core (default agent); \
                 hot=SHARE, above 0 and below 1, such as 0.25 (default 0.25)",
            ),
            (
                "slice_us=0",
                "`0` is not a valid value for `slice_us`: write slice_us=N, 1 to 1000000",
            ),
            (
                "slice_us=1/2",
                "`1/2` is not a valid value for `slice_us`: write slice_us=N, 1 to 1000000",
            ),
            (
                "slice_us=+2",
                "`+2` is not a valid value for `slice_us`: write slice_us=N, 1 to 1000000",
            ),
            (
                "slo_us=5/",
                "`5/` is not a valid value for `slo_us`: write slo_us=N/N/..., at most 16 of them, each 1 to \
                 1000",
            ),
            (
                "quantum_ms=9..3",
                "`9..3` is not a valid value for `quantum_ms`: write quantum_ms=LEAST..MOST, each 1 to 100",
            ),
            (
                "hot=1",
                "`1` is not a valid value for `hot`: write hot=SHARE, above 0 and below 1, such as 0.25",
            ),
            (
                "hot=1e-1",
                "`1e-1` is not a valid value for `hot`: write hot=SHARE, above 0 and below 1, such as 0.25",
            ),
            (
                "hot=.",
                "`.` is not a valid value for `hot`: write hot=SHARE, above 0 and below 1, such as 0.25",
            ),
            ("timer=nic", "`nic` is not a valid value for `timer`: write timer=agent|core"),
            (
                "slice_us",
                "`slice_us` is not a setting: write KEY=VALUE, and commas between several",
            ),
            ("slice_us=1,", "`` is not a setting: write KEY=VALUE, and commas between several"),
            ("slice_us=1,slice_us=1", "`slice_us` is set twice"),
        ] {
            assert_eq!(Settings::parse(text, &ALLOWED).unwrap_err().to_string(), expected);
        }
        let many = ["1"; CLASSES_MAX + 1].join("/");
        assert!(Settings::parse(&alloc::format!("slo_us={many}"), &ALLOWED).is_err());
        assert!(Settings::parse(&alloc::format!("slo_us={}", &many[2..]), &ALLOWED).is_ok());
    }

    #[test]
    fn default_is_a_valid_value_or_a_description() {
        let number = |default| Setting::number("n", default, 1..=100, "");
        let per_class = |default| Setting::per_class("n", default, 1..=100, "");
        let span = |default| Setting::span("n", default, 1..=100, "");
        let share = |default| Setting::share("n", default, "");
        for valid in [number("30"), number("0.5 per core"), per_class("1/100"), span("5..10")] {
            assert!(valid.has_valid_default(), "{}", valid.default);
        }
        let wrong = [number("0"), number("101"), number("1/2"), number(""), per_class("50/101")];
        for wrong in wrong.into_iter().chain([span("9..3"), share("1.5"), share("half")]) {
            assert!(!wrong.has_valid_default(), "{}", wrong.default);
        }
        assert!(share("0.25").has_valid_default());
        assert!(ALLOWED[0].has_valid_default() && !ALLOWED[1].has_valid_default());
    }
}
