// Package money holds exact dollars: Dollars, a rate in micro-dollars per hour, and Amount, dollars already spent in
// micro-dollars.
//
// Binary floats are never stored. A price enters by Parse or UnmarshalJSON (what a person wrote, taken exactly) or by
// CeilFromFloat (what a provider's API answered, rounded up so that a bill is never above what was reserved), and
// leaves as the literal digits. Arithmetic saturates at the ends of int64 (about 9.2 million million dollars) instead
// of wrapping: a sum too large to hold then still compares above every ceiling, which is the safe side for a program
// that spends.
package money
