// Package account turns a pool entry's credentials into one shared account per credential: the driver, the catalogue of
// what it can rent, the observer of what it rents, and the outcome of the last credential check.
//
// Credentials come from the Secret that the entry names or, where it names none, from the controller's environment; the
// two are never mixed. A credential is known to everybody else by its fingerprint only, and no error here contains one.
package account
