// Package objects asks object stores for the versions of objects. A URL like gs://bucket/name names an object.
//
// It promises: two versions are equal only if no writer has replaced the object in between. An object that does not exist
// has no version. If the store does not answer, the version is unknown, which is an error.
//
// gcs.go asks Google Cloud Storage, and token.go gets the tokens for these requests. Both read the environment variables
// that TensorFlow's own file system reads, so that an object is readable for both or for none.
//
// Do not read contents here: TensorFlow does that.
package objects
