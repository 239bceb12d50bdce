// Package vastai is Vast.ai's HTTP API in front of a simulated market, with the parts of it that have surprised its
// users: a bad key that is "404", refusals under three statuses and under 200, a low bid that leaves an instance behind,
// an address with a newline, ports that are null until they are not, a list that pages at 25, calls that must be seconds
// apart. It is strict in what it accepts, so that a driver cannot come to rely on what the vendor does not promise.
//
// It knows the wire format from the vendor's documents and shares no type with the driver that it is used to test.
package vastai
