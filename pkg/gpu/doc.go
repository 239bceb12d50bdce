// Package gpu knows the GPU models that can be rented: one canonical name each, what the part can do, and how every
// provider spells it.
//
// Canonical names are upper case, carry the memory size only where one name covers two sizes, and the form factor only
// where the bandwidth differs enough to matter (A100-80GB-SXM). Names are matched exactly per provider, never by
// substring: "RTX A6000", "RTX 6000Ada" and "RTX PRO 6000" are three generations. A spelling that is not known, a
// name whose memory size is needed and not given, and a fraction of a GPU all become "unknown:<raw>": shown to people,
// matched by no pool entry, never bought.
//
// Figures and spellings are the provider reference's of August 2026; where it gives a range the lowest is used, so that
// planning never counts on memory or bandwidth that is not there. Spellings it marks as guesses are left out.
package gpu
