//! Splits a script's text into tokens.

use crate::BadScript;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Digits, with at most one decimal point, which may come first.
    Number(String),
    /// A word: a name or keyword.
    Word(String),
    /// Text between quotation marks.
    Text(String),
    /// A shell command between backquotes.
    Shell(String),
    /// A Python block, `%{ ... }%`.
    Code,
    /// An option, such as `--tolerance_usecs`.
    Option(String),
    /// `...`.
    Ellipsis,
    /// Any other character.
    Mark(char),
}

#[derive(Clone, Debug)]
pub struct Token {
    pub kind: Kind,
    /// Line, from 1.
    pub line: usize,
    /// Column in characters, from 1.
    pub column: usize,
}

struct Text<'a> {
    left: std::iter::Peekable<std::str::Chars<'a>>,
    line: usize,
    column: usize,
}

impl Text<'_> {
    fn peek(&mut self) -> Option<char> {
        self.left.peek().copied()
    }

    /// The character after the next one.
    fn second(&self) -> Option<char> {
        self.left.clone().nth(1)
    }

    fn next(&mut self) -> Option<char> {
        let next = self.left.next()?;
        if next == '\n' {
            (self.line, self.column) = (self.line + 1, 1);
        } else {
            self.column += 1;
        }
        Some(next)
    }

    fn take_while(&mut self, is_in: impl Fn(char) -> bool) -> String {
        let mut taken = String::new();
        while let Some(next) = self.peek().filter(|next| is_in(*next)) {
            self.next();
            taken.push(next);
        }
        taken
    }

    /// Reads up to `end`, and consumes that too.
    fn up_to(&mut self, end: &str, what: &str) -> Result<String, BadScript> {
        let (line, column) = (self.line, self.column);
        let mut taken = String::new();
        while !taken.ends_with(end) {
            let Some(next) = self.next() else {
                return Err(BadScript {
                    line,
                    column,
                    what: format!("{what} is not closed: missing {end}"),
                });
            };
            taken.push(next);
        }
        taken.truncate(taken.len() - end.len());
        Ok(taken)
    }
}

/// Splits `text` into tokens.
///
/// # Errors
/// A comment, a string, a command or a code block is not closed, or `..` stands alone.
pub fn tokens(text: &str) -> Result<Vec<Token>, BadScript> {
    let mut text = Text { left: text.chars().peekable(), line: 1, column: 1 };
    let mut tokens = Vec::new();
    while let Some(next) = text.peek() {
        let (line, column) = (text.line, text.column);
        let second = text.second();
        let is_digit = |next: Option<char>| next.is_some_and(|next| next.is_ascii_digit());
        let kind = match next {
            _ if next.is_whitespace() => {
                text.next();
                continue;
            }
            '#' => {
                text.take_while(|next| next != '\n');
                continue;
            }
            '/' if second == Some('/') => {
                text.take_while(|next| next != '\n');
                continue;
            }
            '/' if second == Some('*') => {
                text.next();
                text.next();
                text.up_to("*/", "the comment")?;
                continue;
            }
            '"' => {
                text.next();
                Kind::Text(text.up_to("\"", "the string")?)
            }
            '`' => {
                text.next();
                Kind::Shell(text.up_to("`", "the command")?)
            }
            '%' if second == Some('{') => {
                text.up_to("}%", "the code")?;
                Kind::Code
            }
            '-' if second == Some('-') => {
                Kind::Option(text.take_while(|next| next == '-' || is_of_word(next)))
            }
            '.' if second == Some('.') => {
                for _ in 0..2 {
                    text.next();
                }
                match text.peek() {
                    Some('.') => {
                        text.next();
                        Kind::Ellipsis
                    }
                    _ => {
                        let what = "`..` is not a token; write `...` for any value".to_owned();
                        return Err(BadScript { line, column, what });
                    }
                }
            }
            '.' if is_digit(second) => {
                text.next();
                Kind::Number(format!("0.{}", text.take_while(|next| next.is_ascii_digit())))
            }
            _ if next.is_ascii_digit() => {
                let mut number = text.take_while(|next| next.is_ascii_digit());
                if number == "0" && text.peek() == Some('x') {
                    number = text.take_while(|next| next.is_ascii_alphanumeric());
                } else if text.peek() == Some('.') && is_digit(text.second()) {
                    text.next();
                    number.push('.');
                    number.push_str(&text.take_while(|next| next.is_ascii_digit()));
                }
                Kind::Number(number)
            }
            _ if is_of_word(next) => Kind::Word(text.take_while(is_of_word)),
            mark => {
                text.next();
                Kind::Mark(mark)
            }
        };
        tokens.push(Token { kind, line, column });
    }
    Ok(tokens)
}

fn is_of_word(next: char) -> bool {
    next.is_ascii_alphanumeric() || next == '_'
}
