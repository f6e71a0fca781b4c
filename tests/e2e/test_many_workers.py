"""Four processes on one PostgreSQL, as on four machines: they hold nothing but caches, so any of them may be asked."""

PROCESSES, CAMPAIGNS, CALLERS, STEPS = 4, 16, 16, 40


def test_four_processes_serve_sixteen_campaigns(new_database, launch, load):
    """R1, R15, R17, R19, R23: no gap, no repeat, no lost reward, every answer is the stored one, `verify` agrees.

    Decisions and rewards, alone and in batches, reads, and the same requests to all at once and again later.
    """
    database_url = new_database("postgresql")
    servers = [launch(database_url) for _ in range(PROCESSES)]
    urls, names = [server.url for server in servers], [f"campaign-{number}" for number in range(CAMPAIGNS)]
    for place, url in enumerate(urls):
        load.create(url, *names[place::PROCESSES])
    for place, url in enumerate(urls):  # one that another process created; its first snapshot is near
        load.age(url, names[place + 1], 980)
    load.start(urls, names, CALLERS, STEPS, twins=True, reads=True)
    load.join()
    assert load.unanswered == load.refusals == []
    load.retry(*urls)
    assert load.check(database_url) == []
    assert {told.campaign for told in load.acknowledged} == set(names)
    assert {told.path for told in load.acknowledged} == {"/decide", "/decide/batch", "/reward", "/reward/batch"}
    assert "Traceback" not in "".join(server.complaints() for server in servers)
