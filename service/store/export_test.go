package store

// ScanLog exports scanLog for the fuzz test.
var ScanLog = scanLog
