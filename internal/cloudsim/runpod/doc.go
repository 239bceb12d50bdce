// Package runpod is RunPod's REST API v2 in front of a simulated market, with the parts of it that have surprised its
// users: a lack of capacity that is a 400 with a sentence, a catalogue that hints and reserves nothing, a request without
// a count that finds nothing, a new pod that is not found, ports that come after "running", a cost of 0 for what is
// stopped, one quota for all calls. It is strict in what it accepts, so that a driver cannot come to rely on what the
// vendor does not promise.
//
// It knows the wire format from the vendor's description and shares no type with the driver that it is used to test.
package runpod
