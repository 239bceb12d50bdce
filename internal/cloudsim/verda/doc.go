// Package verda is Verda's API (formerly DataCrunch) in front of a simulated market: whole virtual machines with an
// address each, that run a stored start-up script once. It speaks as the provider reference says, and where that is not
// sure Options choose. It is strict in what it accepts, and shares nothing with the driver.
//
// What outlives an instance and is billed is here and not in the market's books: volumes that were left detached, and the
// trash. Leftovers tells of them, and of scripts, of which an account can have a hundred.
package verda
