// Package offers is the live catalogue of what can be rented: which offers fit a need and why the others do not, which
// of those that fit comes first, what each failure of a provider means for what is done next, and per credential one
// catalogue of searches and one observer of instances that everybody shares.
//
// Judging and ranking (Judge, Select, Compare) and the meaning of errors (ActionFor) are pure: the same code decides in
// the controller, offline and in the simulator. Catalogue and Observer call the provider, never faster than it allows.
package offers
