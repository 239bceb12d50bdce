// Package pki makes and checks the certificates by which an installation's callers and its workers know each other.
//
// Each installation has one CA. A caller's certificate carries one URI, gpuscale://<installation>/<role>, and can only
// be a client; a worker's carries one DNS name, <claim-uid>.worker.gpuscale, and can only be a server. So the key that
// lies on a rented machine, which its owner may read, opens no other machine, and a caller's key impersonates none.
//
// Time is passed in. Keys are ECDSA P-256, which every TLS 1.3 peer speaks and which keeps boot data short.
package pki
