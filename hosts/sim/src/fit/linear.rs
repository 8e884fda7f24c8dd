//! Least squares within bounds, for a few variables.

/// One squared summand: the sum of `weights` times variables, less `aim`.
#[derive(Clone, Debug)]
pub(super) struct Term {
    pub weights: Vec<f64>,
    pub aim: f64,
}

impl Term {
    pub fn square(&self, at: &[f64]) -> f64 {
        let sum: f64 = self.weights.iter().zip(at).map(|(weight, x)| weight * x).sum();
        (sum - self.aim).powi(2)
    }
}

/// The variables that minimise the sum of the squares of `terms`, each within its bounds; the terms must determine every
/// variable. An active-set method: a variable that would pass a bound stays there until the others no longer push it out.
pub(super) fn least_squares(terms: &[Term], bounds: &[(f64, f64)]) -> Vec<f64> {
    let count = bounds.len();
    let mut matrix = vec![vec![0.0; count]; count];
    let mut side = vec![0.0; count];
    for term in terms {
        for row in 0..count {
            side[row] += term.weights[row] * term.aim;
            for (column, entry) in matrix[row].iter_mut().enumerate() {
                *entry += term.weights[row] * term.weights[column];
            }
        }
    }
    let mut at: Vec<f64> = bounds.iter().map(|(low, high)| f64::midpoint(*low, *high)).collect();
    let mut held = vec![false; count];
    // Each round holds or releases a variable; cycles do not occur in practice, and the bound ends them.
    for _ in 0..20 * count {
        let aim = solve(&matrix, &side, &at, &held);
        // As far towards the solution as the bounds permit.
        let mut share = 1.0;
        let mut blocked = None;
        for index in (0..count).filter(|index| !held[*index]) {
            let (low, high) = bounds[index];
            let bound = aim[index].clamp(low, high);
            if bound != aim[index] {
                let part = (bound - at[index]) / (aim[index] - at[index]);
                if part < share {
                    (share, blocked) = (part, Some((index, bound)));
                }
            }
        }
        for index in (0..count).filter(|index| !held[*index]) {
            at[index] += share * (aim[index] - at[index]);
        }
        if let Some((index, bound)) = blocked {
            at[index] = bound;
            held[index] = true;
            continue;
        }
        let pushed = |index: &usize| {
            let slope = matrix[*index].iter().zip(&at).map(|(entry, x)| entry * x).sum::<f64>()
                - side[*index];
            let (low, high) = bounds[*index];
            let inward = if at[*index] <= low { -slope } else { slope };
            (high > low && inward > 1e-9).then_some(inward)
        };
        let free = (0..count).filter(|index| held[*index]);
        let released = free
            .filter_map(|index| Some((pushed(&index)?, index)))
            .max_by(|a, b| a.0.total_cmp(&b.0));
        match released {
            Some((_, index)) => held[index] = false,
            None => break,
        }
    }
    at
}

/// The variables that minimise the squares while the held ones stay: Gaussian elimination.
fn solve(matrix: &[Vec<f64>], side: &[f64], at: &[f64], held: &[bool]) -> Vec<f64> {
    let free: Vec<usize> = (0..at.len()).filter(|index| !held[*index]).collect();
    let mut rows: Vec<Vec<f64>> = free
        .iter()
        .map(|&row| {
            let fixed: f64 =
                (0..at.len()).filter(|&c| held[c]).map(|c| matrix[row][c] * at[c]).sum();
            let entries = free.iter().map(|&column| matrix[row][column]);
            entries.chain([side[row] - fixed]).collect()
        })
        .collect();
    for pivot in 0..free.len() {
        let best = (pivot..free.len())
            .max_by(|&a, &b| rows[a][pivot].abs().total_cmp(&rows[b][pivot].abs()));
        rows.swap(pivot, best.expect("not empty"));
        let (done, rest) = rows.split_at_mut(pivot + 1);
        for row in rest {
            let factor = row[pivot] / done[pivot][pivot];
            for (entry, above) in row.iter_mut().zip(&done[pivot]).skip(pivot) {
                *entry -= factor * above;
            }
        }
    }
    let mut found = at.to_vec();
    for row in (0..free.len()).rev() {
        let known: f64 = (row + 1..free.len()).map(|c| rows[row][c] * found[free[c]]).sum();
        found[free[row]] = (rows[row][free.len()] - known) / rows[row][row];
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn term<const N: usize>(weights: [f64; N], aim: f64) -> Term {
        Term { weights: weights.to_vec(), aim }
    }

    #[test]
    fn a_solution_within_bounds_is_found_exactly() {
        let terms = [term([1.0, 1.0], 5.0), term([1.0, -1.0], 1.0)];
        let found = least_squares(&terms, &[(0.0, 10.0), (0.0, 10.0)]);
        assert!((found[0] - 3.0).abs() < 1e-9 && (found[1] - 2.0).abs() < 1e-9, "{found:?}");
    }

    #[test]
    fn a_variable_stays_at_its_bound_and_others_compensate() {
        let terms = [term([1.0, 1.0], 5.0), term([1.0, -1.0], 1.0)];
        let found = least_squares(&terms, &[(0.0, 2.0), (0.0, 10.0)]);
        // At x = 2: the minimum of (y - 3)^2 + (1 - y)^2.
        assert!((found[0] - 2.0).abs() < 1e-9 && (found[1] - 2.0).abs() < 1e-9, "{found:?}");
    }

    /// Compares with a search by single coordinates, which is slow and simple.
    #[test]
    fn least_squares_agree_with_a_search_by_coordinates() {
        use rand::Rng;
        let mut random = crate::random::stream(7, "least squares", 0);
        for _ in 0..50 {
            let terms: Vec<Term> = (0..6)
                .map(|_| Term {
                    weights: (0..4).map(|_| random.random_range(-1.0..1.0)).collect(),
                    aim: random.random_range(-3.0..3.0),
                })
                .collect();
            let bounds = [(-1.0, 1.0); 4];
            let sum = |at: &[f64]| terms.iter().map(|term| term.square(at)).sum::<f64>();
            let found = least_squares(&terms, &bounds);
            let mut plain = vec![0.0; 4];
            for _ in 0..2000 {
                for index in 0..4 {
                    let (mut above, mut below) = (0.0, 0.0);
                    for term in &terms {
                        let weight = term.weights[index];
                        let rest: f64 = (0..4)
                            .filter(|other| *other != index)
                            .map(|other| term.weights[other] * plain[other])
                            .sum();
                        above += weight * (term.aim - rest);
                        below += weight * weight;
                    }
                    plain[index] = (above / below).clamp(-1.0, 1.0);
                }
            }
            assert!(found.iter().all(|x| (-1.0..=1.0).contains(x)));
            assert!((sum(&found) - sum(&plain)).abs() < 1e-6, "{found:?} {plain:?}");
        }
    }
}
