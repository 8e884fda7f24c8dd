//! Finds the fields that a type reads by letting it read: from a deserializer that has a value for every request.

use std::cell::RefCell;
use std::collections::BTreeMap;

use serde::de::value::{BorrowedStrDeserializer, Error};
use serde::de::{
    DeserializeOwned, DeserializeSeed, Deserializer, Error as _, IntoDeserializer, MapAccess,
    SeqAccess, Visitor,
};

/// Type of a field's value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Shape {
    Table,
    Text,
    Flag,
    Whole,
    Number,
    OneOf(&'static [&'static str]),
    /// A list of these, and its length if the type fixes it.
    List(Box<Shape>, Option<usize>),
}

/// A field as read by a type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Traced {
    pub shape: Shape,
    /// Whether its table is refused without the field.
    pub required: bool,
}

/// The fields that `T` reads, by paths such as `variant.cores`; fields of a list of tables have the list's path as a prefix.
pub fn fields<T: DeserializeOwned>() -> BTreeMap<String, Traced> {
    let read = |left_out: Option<&str>| {
        let found = RefCell::default();
        let tracer = Tracer { found: &found, path: String::new(), left_out };
        T::deserialize(tracer).map(|_| found.into_inner())
    };
    let found: BTreeMap<String, Shape> = read(None).expect("every type of the scenarios is traced");
    let of = |(path, shape): (String, Shape)| {
        let required = read(Some(&path)).is_err();
        (path, Traced { shape, required })
    };
    found.into_iter().map(of).collect()
}

#[derive(Clone)]
struct Tracer<'a> {
    found: &'a RefCell<BTreeMap<String, Shape>>,
    path: String,
    /// The field left out, if any.
    left_out: Option<&'a str>,
}

impl<'a> Tracer<'a> {
    fn note(&self, shape: Shape) {
        if !self.path.is_empty() {
            self.found.borrow_mut().insert(self.path.clone(), shape);
        }
    }

    fn at(&self, field: &str) -> Self {
        let path = match self.path.as_str() {
            _ if is_of_spans(field) => self.path.clone(),
            "" => field.to_owned(),
            table => format!("{table}.{field}"),
        };
        Tracer { path, ..self.clone() }
    }

    fn list<'de, V: Visitor<'de>>(self, len: Option<usize>, visitor: V) -> Result<V::Value, Error> {
        let value = visitor.visit_seq(Items { tracer: &self, left: len.unwrap_or(1) })?;
        let item = self.found.borrow_mut().remove(&self.path).unwrap_or(Shape::Table);
        self.note(Shape::List(Box::new(item), len));
        Ok(value)
    }
}

/// Fields by which [`toml::Spanned`] requests positions; they are in no file.
fn is_of_spans(field: &str) -> bool {
    field.starts_with("$__")
}

/// Deserializes scalars: notes the shape of each, and returns a value.
macro_rules! scalars {
    ($($method:ident $visit:ident $value:expr, $shape:expr;)*) => {$(
        fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
            self.note($shape);
            visitor.$visit($value)
        }
    )*};
}

impl<'de> Deserializer<'de> for Tracer<'_> {
    type Error = Error;

    scalars! {
        deserialize_bool visit_bool false, Shape::Flag;
        deserialize_u8 visit_u8 1, Shape::Whole;
        deserialize_u16 visit_u16 1, Shape::Whole;
        deserialize_u32 visit_u32 1, Shape::Whole;
        deserialize_u64 visit_u64 1, Shape::Whole;
        deserialize_i32 visit_i32 1, Shape::Whole;
        deserialize_i64 visit_i64 1, Shape::Whole;
        deserialize_f64 visit_f64 1.0, Shape::Number;
        deserialize_str visit_str "x", Shape::Text;
        deserialize_string visit_str "x", Shape::Text;
    }

    fn deserialize_ignored_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        self.note(Shape::Table);
        visitor.visit_unit()
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_some(self)
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        self.list(None, visitor)
    }

    fn deserialize_tuple<V: Visitor<'de>>(self, len: usize, visitor: V) -> Result<V::Value, Error> {
        self.list(Some(len), visitor)
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        if !fields.iter().any(|field| is_of_spans(field)) {
            self.note(Shape::Table);
        }
        visitor.visit_map(Fields { tracer: self, left: fields, at: "" })
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        self.note(Shape::OneOf(variants));
        visitor.visit_enum(variants[0].into_deserializer())
    }

    fn deserialize_any<V: Visitor<'de>>(self, _visitor: V) -> Result<V::Value, Error> {
        Err(Error::custom(format!("`{}` has a type that is not traced", self.path)))
    }

    serde::forward_to_deserialize_any! {
        i8 i16 i128 u128 f32 char bytes byte_buf unit unit_struct newtype_struct tuple_struct map identifier
    }
}

struct Fields<'a> {
    tracer: Tracer<'a>,
    left: &'static [&'static str],
    at: &'static str,
}

impl<'de> MapAccess<'de> for Fields<'_> {
    type Error = Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, Error> {
        while let Some((field, rest)) = self.left.split_first() {
            self.left = rest;
            self.at = field;
            let of_spans = is_of_spans(field);
            if of_spans || self.tracer.left_out != Some(&self.tracer.at(field).path) {
                return seed.deserialize(BorrowedStrDeserializer::new(field)).map(Some);
            }
        }
        Ok(None)
    }

    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value, Error> {
        let is_place = is_of_spans(self.at) && !self.at.ends_with("value");
        match is_place {
            true => seed.deserialize(0_usize.into_deserializer()),
            false => seed.deserialize(self.tracer.at(self.at)),
        }
    }
}

struct Items<'a> {
    tracer: &'a Tracer<'a>,
    left: usize,
}

impl<'de> SeqAccess<'de> for Items<'_> {
    type Error = Error;

    fn next_element_seed<S: DeserializeSeed<'de>>(
        &mut self,
        seed: S,
    ) -> Result<Option<S::Value>, Error> {
        if self.left == 0 {
            return Ok(None);
        }
        self.left -= 1;
        seed.deserialize(self.tracer.clone()).map(Some)
    }
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;
    use toml::Spanned;

    use super::*;

    #[derive(Deserialize)]
    #[serde(rename_all = "kebab-case")]
    enum Color {
        Red,
        DarkRed,
    }

    #[derive(Deserialize)]
    #[allow(dead_code, reason = "it is read, and no more")]
    struct Inner {
        color: Option<Color>,
        pair: [u64; 2],
    }

    #[derive(Deserialize)]
    #[allow(dead_code, reason = "it is read, and no more")]
    struct Outer {
        name: Spanned<String>,
        #[serde(default)]
        share: f64,
        #[serde(rename = "inner")]
        list: Option<Spanned<Vec<Spanned<Inner>>>>,
        loads: Vec<Spanned<u32>>,
    }

    #[test]
    fn fields_are_found_with_types_and_whether_required() {
        let found = fields::<Outer>();
        let list = |item| Shape::List(Box::new(item), None);
        let expected = [
            ("inner", list(Shape::Table), false),
            ("inner.color", Shape::OneOf(&["red", "dark-red"]), false),
            ("inner.pair", Shape::List(Box::new(Shape::Whole), Some(2)), true),
            ("loads", list(Shape::Whole), true),
            ("name", Shape::Text, true),
            ("share", Shape::Number, false),
        ];
        let expected =
            expected.map(|(path, shape, required)| (path.to_owned(), Traced { shape, required }));
        assert_eq!(found.into_iter().collect::<Vec<_>>(), expected);
    }
}
