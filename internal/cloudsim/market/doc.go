// Package market is a simulated GPU cloud without a wire format: machines with stock, offers with prices that walk,
// rentals that boot, break, are outbid and are billed, and faults in between. A façade per provider puts that
// provider's HTTP API in front of it.
//
// The market keeps its own books with its own arithmetic, in whole nano-dollars, and shares no code with the money
// package that it is used to check.
//
// Nothing in it is random: every decision is a function of the seed, the provider's name and the ordinal of a request or
// the name of a machine, so that one run can be had again. Time comes from a clock that is given to it. Everything that
// is due happens at its due time in the books, however late anyone looks.
package market
