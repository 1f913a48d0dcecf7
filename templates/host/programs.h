// ---- tails, host: the kernel serves every model, the programs are in libraries of their own (host/tails.h)
VP_ROUTINE void tail(const Vp& vp, const Tail& i)
{
    for (const TailEntry* entry = vp.tails; entry->run; entry++)
        if (entry->number == i.number) return entry->run(vp, i);
    stop(vp, vp.position, UNKNOWN_INSTRUCTION);
}
