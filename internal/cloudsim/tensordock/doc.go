// Package tensordock is TensorDock's v2 HTTP API in front of a simulated market, with the parts of it that have surprised
// its users: refusals under status 200, complaints in a bare array, lists that say little of an instance, forwards that
// come late and at other ports than those asked for, a data centre that lists what is sold out, a stopped VM that is
// billed in full, a rate of zero until a VM runs. It is strict in what it accepts, so that a driver cannot come to rely
// on what the vendor does not promise; where it is not known what the vendor does, Options choose.
//
// A machine of the market is a hostnode. Its GPUs are sold in the sizes in which the market has slices of it, vCPUs and
// memory apart.
//
// It knows the wire format from the provider reference and shares no type with the driver that it is used to test.
package tensordock
