"""The ledger: workflows, steps, attempts, usage and cost in SQL. `store.SqlLedger` is the way in."""
