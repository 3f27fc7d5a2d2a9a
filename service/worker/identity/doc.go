// Package identity holds who a worker is: its id, its cluster and its address.
//
// An Identity (identity.go) is safe for concurrent use. Its id changes only in Renew, when the worker joins another
// cluster. Address and LocalAddress are set once, before the data plane accepts connections. Do not set them later.
package identity
