package store

// ScanLog is scanLog for the fuzzer.
var ScanLog = scanLog
