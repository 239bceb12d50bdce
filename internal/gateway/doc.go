// Package gateway is the OpenAI API in front of all workers: it knows the models, chooses a worker for each request, and
// passes answers on as the engine gave them.
//
// A request's body is read whole before a worker is chosen, so that it can be sent again. Until the first byte of an
// answer came, a request whose worker is unreachable, lost, or refuses it goes to another; after that byte it is never
// sent again, and an event stream that breaks ends in an error event without [DONE]. What an engine itself answered, an
// error too, is the client's to see.
//
// Workers run on machines that others own: they get the body and a few harmless headers of a request, never its key, and
// only harmless headers of theirs reach the client. The access log has neither bodies nor keys.
//
// Which worker can serve what is in package registry; package claims fills it from Kubernetes.
package gateway
