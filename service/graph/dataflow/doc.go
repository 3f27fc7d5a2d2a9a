// Package dataflow analyses the functions of a dataset: on which arguments a result depends, and what a
// function does to one component's values and shape.
//
// It promises: a value that it does not understand is opaque, and opaque values allow no change of order.
//
// dependencies.go finds which results depend on which arguments. change.go is the result of a value analysis,
// and function.go runs one for a step's function. values.go and tensor.go hold the state of an analysis, with
// symbolic shapes. transfer.go lists the transfer functions, one for each op; pointwise.go, branches.go,
// reshape.go, slice.go and image.go define them. constants.go computes what a step returns for one number.
//
// An op without a transfer function is opaque. Do not add one without a proof that it holds to the last bit.
package dataflow
